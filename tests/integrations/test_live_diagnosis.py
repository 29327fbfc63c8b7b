"""The live diagnosis: metrics of a padded batch, its stop, verl's batch and TRL's trainer."""

import subprocess
import sys
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from simlab.diagnosis.injected_faults import generate_log
from simlab.diagnosis.ranking import rank_causes
from simlab.integrations.live_diagnosis import LiveDiagnosis, RunStoppedError, choose_rows


def _padded(log):
    """Return logp_train, logp_infer, mask and ids [B, T] with NaN in the padding."""
    mask = np.arange(log.lengths.max()) < log.lengths[:, None]
    tables = []
    for values in (log.logp_train, log.logp_infer, np.ones(len(log.mask)), log.ids):
        table = np.full(mask.shape, np.nan if values.dtype.kind == "f" else 0, values.dtype)
        table[mask] = values
        tables.append(table)
    tables[2] = mask
    return tables


@pytest.fixture(scope="module")
def log():
    return generate_log("no_fault", 0, 3, noise=0.05, steps=1)


def test_metrics_equal_the_diagnosis_of_the_log(log):
    found = LiveDiagnosis(every=2).observe(4, *_padded(log))
    causes, signatures = rank_causes(
        type(log)(log.lengths, log.logp_train, log.logp_infer, log.mask, log.step, ids=log.ids)
    )
    assert found["simlab/level"] == signatures["level"]
    for cause in causes:
        assert found[f"simlab/probability/{cause.cause}"] == cause.probability
    assert found["simlab/seconds"] > 0


def test_steps_between_diagnoses_cost_nothing():
    assert LiveDiagnosis(every=2).observe(3, None, None, None) == {}


def test_large_batch_is_read_in_turns():
    mask = np.ones((100, 10))
    seen = [choose_rows(mask, 250, turn) for turn in range(5)]
    assert seen[:4] == [slice(0, 25), slice(25, 50), slice(50, 75), slice(75, 100)]
    assert seen[4] == seen[0]
    assert choose_rows(mask, 5, 0) == slice(0, 1)
    assert choose_rows(mask, 10**6, 3) == slice(0, 100)


def test_run_stops_after_patience(log):
    train, infer, mask, ids = _padded(log)
    live = LiveDiagnosis(stop_on=("log_base",), stop_probability=0.5, patience=2)
    live.observe(0, train, infer / np.log(2), mask, ids)
    with pytest.raises(RunStoppedError, match=r"step 1: log_base .* Fix: multiply"):
        live.observe(1, train, infer / np.log(2), mask, ids)


def test_verl_batch_without_log_probs_names_the_setting(log):
    train, infer, mask, ids = _padded(log)
    fields = {"old_log_probs": train, "rollout_log_probs": infer, "response_mask": mask, "responses": ids}
    assert LiveDiagnosis().diagnose_verl(SimpleNamespace(batch=fields), 0)
    del fields["rollout_log_probs"]
    with pytest.raises(ValueError, match="calculate_log_probs=True"):
        LiveDiagnosis().diagnose_verl(SimpleNamespace(batch=fields), 0)


def test_trl_trainer_gets_metrics(log):
    train, infer, mask, ids = _padded(log)
    output = {
        "old_per_token_logps": train,
        "sampling_per_token_logps": infer,
        "completion_mask": mask,
        "completion_ids": ids,
    }
    trainer = SimpleNamespace(
        _generate_and_score_completions=lambda *_: output,
        _metrics={"train": defaultdict(list)},
        state=SimpleNamespace(global_step=0),
        model=SimpleNamespace(training=True),
    )
    LiveDiagnosis().attach_trl(trainer)
    assert trainer._generate_and_score_completions([]) is output
    metrics = trainer._metrics["train"]
    assert "simlab/probability/rounding" in metrics
    # Tokens that no engine sampled: written by tools, or without a log-prob of vLLM.
    changed = {name: values.copy() for name, values in output.items()}
    changed["tool_mask"] = np.arange(mask.shape[1]) % 9 > 0
    changed["sampling_per_token_logps"][:, ::9] = 0
    changed["sampling_per_token_logps"][:, 1::9] = np.nan
    output |= changed
    trainer._generate_and_score_completions([])
    kept = mask & (np.arange(mask.shape[1]) % 9 > 1)
    direct = LiveDiagnosis().observe(0, train, infer, kept, ids)
    assert metrics["simlab/level"][1] == direct["simlab/level"]
    trainer.model.training = False
    trainer._generate_and_score_completions([])
    assert len(metrics["simlab/level"]) == 2


def test_live_diagnosis_needs_numpy_alone():
    code = """
import sys
for name in ("jax", "scipy", "pyarrow", "pandas"):
    sys.modules[name] = None  # an import of it fails
import simlab.integrations.live_diagnosis
"""
    subprocess.run([sys.executable, "-c", code], check=True)
