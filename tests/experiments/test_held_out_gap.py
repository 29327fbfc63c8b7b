"""The gap between rewards on training and on held-out prompts, on a made-up study with a known gap."""

import numpy as np
import pytest

from experiments.studies.held_out_gap import HELD_OUT, read_rewards, summarize
from simlab.core.manifest import MANIFEST_NAME
from simlab.core.results import Results, write_table
from simlab.studies.board import list_results

GAP, POLICIES, STEPS = 0.05, 24, 40
AT_REST = 1e-8
"""Largest learning rate of runs that only measure the initial policy, as `routing_replay` does."""


@pytest.fixture(params=HELD_OUT)
def study(tmp_path, request):
    """Runs of four arms; in the first two quarters of a run the gap is another one."""
    rng = np.random.default_rng(0)
    noise = {"plain": "truncation", "fork": "truncation", "noisy": "fresh noise", "single": "truncation"}
    runs, chunks, validated = [], [], []
    for arm, kind in noise.items():
        for policy in range(1 if arm == "single" else POLICIES):
            run = len(runs)
            made = {"seed": 0, "steps": STEPS, "status": "finished", "noise_kind": kind}
            runs.append({"run": str(run), "arm": arm, "initial_policy": str(policy), **made})
            level = 0.5 + 0.1 * rng.normal()
            for step in range(0, STEPS, 10):
                gap = GAP + 0.01 * rng.normal() if step >= 30 else 1.0
                chunks.append({"run": str(run), "step": step, "reward": level + gap})
            validated += [
                {"run": str(run), "step": step, request.param: level}
                for step in ([STEPS] if arm == "fork" else [30, STEPS])
            ]
    for name, rows in (("runs", runs), ("chunks", chunks), ("diagnostics", validated)):
        write_table(tmp_path, name, rows)
    (tmp_path / MANIFEST_NAME).write_text('{"name": "made_up"}')
    return Results(tmp_path)


def test_every_stored_run_that_trains_has_a_validation():
    missing = {}
    for experiment, results in list_results():
        if {"runs", "chunks"} <= set(results.table_names):
            runs = results.table("runs")
            trains = runs["learning_rate"] > AT_REST
            if arms := set(runs["arm"][trains & ~runs["run"].isin(validated_runs(results))]):
                missing[experiment.name] = sorted(arms)
    assert not missing


def validated_runs(results):
    if "diagnostics" not in results.table_names:
        return []
    rows = results.table("diagnostics")
    return rows["run"][rows.filter(like="held_out").notna().any(axis=1)]


def test_only_arms_whose_rewards_can_be_compared_are_read(study):
    (rewards,) = read_rewards(study)
    assert (rewards.experiment, rewards.arm, len(rewards.policies)) == ("made_up", "plain", POLICIES)


def test_the_interval_holds_the_planted_gap(study):
    (rewards,) = read_rewards(study)
    # 1% of such intervals miss; the seed is fixed.
    row = summarize(rewards, level=0.99)
    assert row["policies"] == POLICIES
    assert row["gap_low"] < GAP < row["gap_high"]
    assert row["gap_high"] - row["gap_low"] < 0.03
    assert row["reward"] - row["held_out"] == pytest.approx(row["gap"])
