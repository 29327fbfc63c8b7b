"""The scale of injected noise at which a run begins with a given mismatch."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.papers import hacking
from experiments.regimes import BASE
from experiments.studies import runs
from experiments.studies.runs import BLOCK, CHUNK, NOISE_SCALES, scale_at
from simlab.studies.experiment import ExperimentContext


@given(st.floats(1, 20), st.floats(1, 3), st.floats(0.05, 0.3))
def test_noise_of_the_measured_scale_has_the_mismatch(factor, power, scale):
    def mismatch(scale):
        return factor * scale**power

    found = scale_at(mismatch(scale), np.array([mismatch(each) for each in NOISE_SCALES]))
    assert found == pytest.approx(scale, rel=0.005)


def test_noise_without_such_a_mismatch_is_refused():
    measured = np.linspace(0.1, 0.2, len(NOISE_SCALES))
    with pytest.raises(ValueError, match=r"noise_mismatch must be between 0.1 and 0.2 nats.*got 0.25"):
        scale_at(0.25, measured)


def test_each_policy_begins_with_noise_of_its_own_scale(tmp_path, monkeypatch):
    arm = hacking.NOISY_MOE
    asked = []

    def measure(run, wanted):
        """Return an RMS log rho of the scale times the number of the policy, counted from one."""
        asked.extend(spec.changes["steps"] for spec in wanted)
        noises = [spec.changes["sampling.noise"] for spec in wanted]
        keys = [f"run {number}" for number in range(len(wanted))]
        values = [noise["scale"] * (noise["seed"] + 1) for noise in noises]
        # In another order than the runs.
        steps = pd.DataFrame({"run": keys, "step": 0, "rms_log_rho": values}).iloc[::-1]
        return {"runs": pd.DataFrame({"run": keys}), "steps": steps}

    monkeypatch.setattr(runs, "run_sweep", measure)
    run = ExperimentContext("noise", tmp_path / "out")
    specs = [spec for block in (0, 1) for spec in runs.list_specs(run, [arm], block)]
    assert set(asked) == {CHUNK}
    assert [spec.changes["steps"] for spec in specs] == [arm.steps] * 2 * BLOCK
    noises = [spec.changes["sampling.noise"] for spec in specs]
    assert [noise["seed"] for noise in noises] == list(range(2 * BLOCK))
    for number, noise in enumerate(noises, start=1):
        assert noise["scale"] * number == pytest.approx(arm.noise_mismatch, rel=0.01)
    scales = {spec.initial_policy: noise["scale"] for spec, noise in zip(specs, noises, strict=True)}
    assert run.config["noise_scales"] == {arm.id: scales}
    assert arm.attributes(BASE)["noise_level"] == arm.noise_mismatch
    assert hacking.NOISY_DENSE.initial_policies.keys() == arm.initial_policies.keys()
