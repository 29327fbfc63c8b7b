"""The goldens' comparison again, with TRL itself and batches from a fresh seed."""

import pytest

from tests.engines_real.frameworks import fresh_goldens
from tests.objectives import test_against_trl as objectives

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def goldens(tmp_path_factory):
    return fresh_goldens("trl", tmp_path_factory.mktemp("trl"))["trl_losses"]


@pytest.mark.parametrize("name", objectives.OBJECTIVE_OF)
def test_value_and_coefficients(goldens, name):
    objectives.check_losses(goldens, name)


@pytest.mark.parametrize("label", objectives.BATCHES)
def test_advantages(goldens, label):
    objectives.check_advantages(goldens, label)
