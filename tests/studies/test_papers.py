"""The claims of the papers: ids, trials, criteria and their reasons agree with the experiments."""

import re
from pathlib import Path

import pytest

from simlab.studies.loading import load_claims, load_experiments
from simlab.studies.records import ExactCheck, StoredRow

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = load_claims()


def test_claim_is_defined_once():
    files = (ROOT / "experiments").rglob("*.py")
    pattern = r'"([HLVACTN]\d+)"'
    defined = [id for file in files for id in re.findall(pattern, file.read_text()) if id in CLAIMS]
    assert sorted(defined) == sorted(CLAIMS)


def test_trial_names_an_experiment_that_tests_the_claim():
    experiments = load_experiments()
    trials = [(claim.id, trial.experiment) for claim in CLAIMS.values() for trial in claim.trials]
    assert len(set(trials)) == len(trials)
    for claim, experiment in trials:
        assert claim in experiments[experiment].claims
    for experiment in experiments.values():
        assert {(claim, experiment.name) for claim in experiment.claims} <= set(trials)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_criteria_state_a_reason_and_one_is_primary(claim):
    for trial in claim.trials:
        assert trial.criteria or trial.rule
        assert all(criterion.because for criterion in trial.criteria)
        compared = [each for each in trial.criteria if not isinstance(each.estimand, (ExactCheck, StoredRow))]
        assert [each.role for each in compared].count("primary") == (1 if compared else 0)
        assert all(each.margin > 0 and each.arms for each in compared)
