"""The long runs on two accumulators: what their engines have in common, and what their rule says."""

import jax
import numpy as np
import pandas as pd
import pytest

from experiments.arms.tensor_cores import GPUS, NARROWED, NOISY, PLAIN, SAME
from experiments.studies import accumulator_drift
from experiments.studies.accumulator_drift import ARMS, DRIFT_BASE, make_spec
from simlab.engines import static_signature
from simlab.studies.estimands import Tables
from simlab.studies.verdicts import decide_family
from simlab.sweeps import recipe_of, run_config

STEPS = 400


def engines(arm):
    return recipe_of(run_config(DRIFT_BASE, make_spec(arm, 0).changes)).engines


def test_arms_have_legends():
    assert [arm.attributes(DRIFT_BASE)["label"] for arm in ARMS] == [arm.id for arm in ARMS]


def test_arms_differ_in_their_adders_alone():
    same, GPUs, narrowed = (engines(arm) for arm in (SAME, GPUS, NARROWED))
    assert same.train == same.infer == GPUs.infer == narrowed.train
    assert static_signature(narrowed) == static_signature(same)
    assert static_signature(GPUs.train) != static_signature(same.train)
    changed = [
        (int(x), int(y))
        for x, y in zip(*(jax.tree.leaves(pair.infer) for pair in (same, narrowed)), strict=True)
        if not np.array_equal(x, y, equal_nan=True)
    ]
    # Projections, head, scores and values: the bits inside and those of the result.
    assert sorted(changed) == [(23, 13)] * 4 + [(25, 13)] * 4


@pytest.mark.parametrize(
    ("fall", "growth", "noise", "verdict"),
    [
        (0.2, 4.0, 0.5, "reproduced"),
        (0.0, 4.0, 0.5, "no effect"),
        (0.2, 1.0, 0.5, "partly reproduced"),
        (0.0, 1.0, 0.0, "premise absent"),
    ],
)
def test_the_rule_needs_a_fall_and_growth_and_a_dose_that_works(fall, growth, noise, verdict):
    falls = {SAME: 0.0, GPUS: fall, NARROWED: 0.0, PLAIN: 0.0, NOISY: noise}
    steps = np.arange(STEPS)
    late = steps >= 0.75 * STEPS
    rows = []
    for arm in ARMS:
        for start in range(6):
            reward = 0.9 - (falls[arm] + 1e-3 * start * (arm != SAME)) * late
            spread = np.where(late, growth, 1.0) * (arm != SAME)
            numbers = dict.fromkeys(accumulator_drift.COLUMNS, spread) | {"reward": reward}
            rows.append(pd.DataFrame({"run": f"{arm} {start}", "step": steps} | numbers))
    runs = [
        {
            "run": f"{arm} {start}",
            "arm": arm.id,
            "initial_policy": f"start {start}",
            "seed": start,
            "steps": STEPS,
        }
        for arm in ARMS
        for start in range(6)
    ]
    finished = pd.DataFrame(runs).assign(status="finished")
    tables = Tables({"runs": finished, "chunks": accumulator_drift.chunks(pd.concat(rows))})
    (finding,) = decide_family(accumulator_drift.collect_evidence(tables))  # type: ignore[arg-type]
    assert (finding.trial.claim, finding.verdict) == ("T5", verdict)
    assert f"{NARROWED}: " in finding.note
