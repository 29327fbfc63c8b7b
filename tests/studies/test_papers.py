"""The claims of the papers: ids, trials, criteria and their reasons agree with the experiments."""

import re
from pathlib import Path

import pytest

from simlab.studies.contrasts import Contrast
from simlab.studies.loading import load_claims, load_experiments
from simlab.studies.records import Regime

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = load_claims()
OWN_CONTROL = {"H18", "A7", "T5"}
"""Claims with a contrast of one arm: its control is inside the estimand, or it is the control itself."""


def test_claim_is_defined_once():
    files = (ROOT / "experiments").rglob("*.py")
    pattern = r'\("([HLVACTN]\d+)"'  # not a look-up, whose first argument is the claims
    defined = [id for file in files for id in re.findall(pattern, file.read_text()) if id in CLAIMS]
    assert sorted(set(defined)) == sorted(CLAIMS)
    names = [id for id in defined if not id.startswith("T")]
    assert len(names) == len(set(names))


def test_trial_names_an_experiment_that_tests_the_claim():
    experiments = load_experiments()
    trials = [(claim.id, trial.experiment) for claim in CLAIMS.values() for trial in claim.trials]
    for claim, experiment in trials:
        assert claim in experiments[experiment].claims
    for experiment in experiments.values():
        assert {(claim, experiment.name) for claim in experiment.claims} <= set(trials)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_criteria_state_a_reason_and_one_is_primary(claim):
    assert claim.trials
    for trial in claim.trials:
        assert [each.role for each in trial.criteria].count("primary") == 1
        assert isinstance(trial.regime, Regime)
        assert all(each.because and each.margin > 0 for each in trial.criteria)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_criteria_hold_a_control(claim):
    for criterion in claim.criteria:
        # A premise is about the untreated arm itself.
        needs_one = criterion.role != "manipulation" and claim.id not in OWN_CONTROL
        if isinstance(criterion.contrast, Contrast) and needs_one:
            assert sum(criterion.contrast.weights.values()) == pytest.approx(0, abs=1e-9), criterion.text


def test_an_id_names_one_arm():
    found = {}
    for arm in (arm for claim in CLAIMS.values() for criterion in claim.criteria for arm in criterion.arms):
        assert vars(found.setdefault(arm.id, arm)) == vars(arm)


def test_a_claim_has_one_trial_per_regime():
    for claim in CLAIMS.values():
        names = [trial.regime.name for trial in claim.trials]
        assert len(names) == len(set(names)), claim.id


def test_regime_names_are_unique():
    regimes = {trial.regime for claim in CLAIMS.values() for trial in claim.trials}
    assert len({regime.name for regime in regimes}) == len(regimes)
