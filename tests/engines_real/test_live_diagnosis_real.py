"""The live diagnosis inside real verl (a `DataProto`) and real TRL (steps of `GRPOTrainer`), on CPU."""

import json
import os
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from simlab.diagnosis import CAUSES, rank_causes
from simlab.diagnosis.injected_faults import generate_log
from tests.engines_real.frameworks import ROOT, interpreter

pytestmark = pytest.mark.engines

PROBABILITY = "simlab/probability/"


def _run_side_script(framework, script, folder, *arguments):
    """Return what the side script wrote to `folder`."""
    command = [interpreter(framework), str(ROOT / "tests" / "engines_real" / script), *arguments, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return json.loads((folder / "live.json").read_text())


def _best(metrics):
    return max((name for name in metrics if name.startswith(PROBABILITY)), key=metrics.get)


@pytest.fixture(scope="module")
def logs():
    """Logs of one step: without a fault, and with base-2 log-probs."""
    log = replace(generate_log("no_fault", 0, 3, noise=0.05, steps=1), group=None)
    return {"faultless": log, "base_2": replace(log, logp_infer=log.logp_infer / np.float32(np.log(2)))}


@pytest.fixture(scope="module")
def verl_metrics(logs, tmp_path_factory):
    folder, arrays = tmp_path_factory.mktemp("verl_live"), {}
    for case, log in logs.items():
        mask = np.arange(log.lengths.max()) < log.lengths[:, None]
        for name in ("logp_train", "logp_infer", "ids"):
            table = np.zeros(mask.shape, getattr(log, name).dtype)
            table[mask] = getattr(log, name)
            arrays[f"{case}/{name}"] = table
        arrays[f"{case}/mask"] = mask.astype(np.int64)
    np.savez(folder / "logs.npz", **arrays)
    return _run_side_script("verl", "verl_live_side.py", folder, str(folder / "logs.npz"))


@pytest.mark.parametrize("case", ["faultless", "base_2"])
def test_verl_batch_gives_metrics_of_its_log(logs, verl_metrics, case):
    log = logs[case]
    causes, signatures = rank_causes(
        type(log)(log.lengths, log.logp_train, log.logp_infer, log.mask, np.zeros_like(log.step), ids=log.ids)
    )
    found = verl_metrics[case]
    for cause in causes:
        assert found[PROBABILITY + cause.cause] == pytest.approx(cause.probability, abs=1e-6)
    assert found["simlab/level"] == pytest.approx(signatures["level"], abs=1e-6)


def test_verl_run_stops_at_its_fault_only(verl_metrics):
    assert verl_metrics["faultless stopped"] == ""
    assert "step 1: log_base" in verl_metrics["base_2 stopped"]


def test_verl_batch_without_log_probs_names_setting(verl_metrics):
    assert "calculate_log_probs=True" in verl_metrics["faultless without log-probs"]


@pytest.fixture(scope="module")
def trl_metrics(tmp_path_factory):
    return _run_side_script("trl", "trl_live_side.py", tmp_path_factory.mktemp("trl_live"))


def _diagnosed(history):
    return [row for row in history if PROBABILITY + "rounding" in row]


def test_trl_logs_every_cause_at_each_generation(trl_metrics):
    history = trl_metrics["no fault"]
    rows = _diagnosed(history)
    # Four steps train on two generated batches.
    assert len(rows) == 2
    assert {name.removeprefix(PROBABILITY) for name in rows[0] if name.startswith(PROBABILITY)} == set(CAUSES)
    assert all(0 < row["simlab/seconds"] < row["step_time"] for row in rows)


def test_trl_names_base_2_and_not_the_faultless_run(trl_metrics):
    assert all(_best(row) == PROBABILITY + "log_base" for row in _diagnosed(trl_metrics["base 2"]))
    for row in _diagnosed(trl_metrics["no fault"]):
        assert row[PROBABILITY + "log_base"] < 0.1
        # Rounded weights, about 0.01 nats.
        assert -3 < row["simlab/level"] < -1


def test_trl_run_stops(trl_metrics):
    assert "log_base" in trl_metrics["stopped"]
    assert "multiply the base-2 list" in trl_metrics["stopped"]
