"""The goldens' comparison again, with verl itself and batches from a fresh seed."""

import pytest

from tests.engines_real.frameworks import fresh_goldens
from tests.metrics import test_against_verl as metrics
from tests.objectives import test_against_verl as objectives

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def goldens(tmp_path_factory):
    return fresh_goldens("verl", tmp_path_factory.mktemp("verl"))


@pytest.mark.parametrize("name", objectives.OBJECTIVE_OF)
def test_value_and_coefficients(goldens, name):
    objectives.check_losses(goldens["verl_losses"], name)


@pytest.mark.parametrize("label", objectives.BATCHES)
def test_advantages(goldens, label):
    objectives.check_advantages(goldens["verl_losses"], label)


@pytest.mark.parametrize("label", objectives.BATCHES)
def test_extra_terms(goldens, label):
    objectives.check_extra_terms(goldens["verl_losses"], label)


@pytest.mark.parametrize("label", metrics.BATCHES)
def test_metrics(goldens, label):
    metrics.check_metrics(goldens["verl_metrics"], label)
