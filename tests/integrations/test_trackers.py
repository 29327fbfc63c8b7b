"""Curves of a sweep on a tracker: verl's names, the same numbers, one run each."""

import sys
import types

import pandas as pd
import pytest

from simlab.integrations.trackers import VERL_NAMES, log_result
from simlab.metrics import METRICS, VERL_ALIASES
from simlab.sweeps.result import SweepResult


class FakeTracker(types.ModuleType):
    def __init__(self, name):
        super().__init__(name)
        self.runs = []

    def init(self, **options):
        self.runs.append({"options": options, "rows": [], "finished": False})

    def log(self, values, step):
        self.runs[-1]["rows"].append((step, values))

    def finish(self):
        self.runs[-1]["finished"] = True


@pytest.fixture
def result(tmp_path):
    runs = pd.DataFrame(
        {
            "run": ["a" * 20, "b" * 20],
            "arm": ["TIS", "none"],
            "status": "finished",
            "optimizer.learning_rate": [1e-3, 2e-3],
            "task.scratch": [float("nan"), 2.0],
        }
    )
    found = SweepResult(tmp_path, runs)
    rows = {
        "run": ["a" * 20, "a" * 20, "b" * 20],
        "step": [1, 0, 0],
        "reward": [0.5, 0.25, 0.75],
        "rms_log_rho": [0.1, 0.2, float("nan")],
        "pcc": [0.9, 0.8, 0.7],
        "learning_rate_factor": [0.5, 1.0, 1.0],
    }
    found._tables["steps"] = pd.DataFrame(rows)
    return found


@pytest.mark.parametrize("tracker", ["trackio", "wandb"])
def test_log_result_sends_each_run_in_order_of_steps(tracker, result, monkeypatch):
    fake = FakeTracker(tracker)
    monkeypatch.setitem(sys.modules, tracker, fake)
    assert log_result(result, tracker, "mine", entity="us") == 2
    first, second = fake.runs
    assert first["finished"]
    assert first["options"]["group"] == "TIS"
    assert first["options"]["entity"] == "us"
    assert first["options"]["config"] == {"optimizer.learning_rate": 1e-3}
    assert second["options"]["config"]["task.scratch"] == 2.0
    assert [step for step, _ in first["rows"]] == [0, 1]
    assert first["rows"][1][1] == {
        "critic/score/mean": 0.5,
        "simlab/rms_log_rho": 0.1,
        "training/rollout_actor_probs_pearson_corr": 0.9,
        "simlab/learning_rate_factor": 0.5,
        "actor/lr": 5e-4,
    }
    assert "simlab/rms_log_rho" not in second["rows"][0][1]


def test_names_of_mismatch_metrics_are_verls():
    for ours, verl in VERL_NAMES.items():
        if ours in METRICS:
            assert VERL_ALIASES[verl] == ours


def test_unknown_and_absent_trackers_are_one_clear_error(result, monkeypatch):
    with pytest.raises(ValueError, match=r"unknown tracker 'mlflow'; .*allowed: trackio, wandb"):
        log_result(result, "mlflow", "mine")
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ImportError, match=r"pip install 'simlab\[trackio\]'"):
        log_result(result, "trackio", "mine")
