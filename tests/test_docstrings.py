"""The examples in docstrings of the public functions print what they say."""

import doctest
from importlib import import_module

import pytest

MODULES = (
    "simlab.diagnosis.rank_tests",
    "simlab.engines.linear",
    "simlab.engines.matmul",
    "simlab.engines.softmax",
    "simlab.formats.quantize",
    "simlab.models.transformer",
    "simlab.objectives.evaluate",
    "simlab.sweeps.config",
    "simlab.sweeps.grids",
    "simlab.theory.budget",
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_print_what_they_say(module):
    found = doctest.testmod(import_module(module))
    assert found.attempted > 0
    assert found.failed == 0
