"""Initial policies that a sweep trains first: counted in the forecast, trained once, timed."""

import pytest

from simlab.sweeps import policy_training, timings
from simlab.sweeps.grids import grid
from simlab.sweeps.machine_speed import Calibration
from simlab.sweeps.plan import Plan, expand, make_plan
from simlab.sweeps.policy_training import (
    COMPILE_SECONDS,
    SECONDS_PER_COST,
    expected_training_minutes,
    missing_policies,
    train_policies,
    training_cost,
)
from simlab.sweeps.result_cache import ResultCache
from tests.sweeps.small import BASE

START = {"steps": 2, "batch": 4}


def plan_of(seeds: range, **changes: int) -> Plan:
    starts = [{"seed": seed, **START, **changes} for seed in seeds]
    runs = expand(BASE, grid({"warm_start": starts, "objective": ["grpo", "gspo"]}), 4)
    return make_plan(runs, [run.key for run in runs], 4)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A result cache beside an empty folder of timings, on a machine twice as slow as that of reference."""
    monkeypatch.setattr(timings, "compile_cache_folder", lambda: tmp_path / "compiled")
    monkeypatch.setattr(policy_training, "calibrate", lambda: Calibration(slowness=2.0, contention=1.0))
    return ResultCache(tmp_path / "cache")


def test_without_timings_a_reference_machine_counts(cache):
    plan = plan_of(range(3))
    cost = training_cost(plan.groups[0].runs[0])
    expected = 2 * (COMPILE_SECONDS + 3 * cost * SECONDS_PER_COST)
    assert expected_training_minutes(plan, cache) == pytest.approx(expected / 60)
    assert training_cost(plan_of(range(1), steps=6).groups[0].runs[0]) == 3 * cost


def test_each_policy_is_trained_once_and_its_time_kept(cache, monkeypatch, capsys):
    clock = iter([0.0, 9.0, 10.0, 12.0])  # the first one is compiled
    monkeypatch.setattr(policy_training.time, "perf_counter", lambda: next(clock))
    train_policies(plan_of(range(2)), cache)
    assert "initial policy 2 of 2 trained: 2 s" in capsys.readouterr().err
    assert missing_policies(plan_of(range(2)), cache) == []
    assert expected_training_minutes(plan_of(range(2)), cache) == 0
    # Five more of the same kind, then two of twice the cost.
    assert expected_training_minutes(plan_of(range(7)), cache) == pytest.approx(
        (2 * COMPILE_SECONDS + 5 * 2) / 60
    )
    assert expected_training_minutes(plan_of(range(2), batch=8), cache) == pytest.approx(
        (2 * COMPILE_SECONDS + 2 * 2 * 2) / 60
    )
