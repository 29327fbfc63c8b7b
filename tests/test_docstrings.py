"""The examples in docstrings of the public functions print what they say."""

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("module", ["simlab.formats.quantize", "simlab.sweeps.grids"])
def test_examples_print_what_they_say(module):
    found = doctest.testmod(import_module(module))
    assert found.attempted > 0
    assert found.failed == 0
