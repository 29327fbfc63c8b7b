"""Initial policies that a sweep trains first: counted in the forecast, trained once, timed."""

import subprocess
import sys

import pytest

from simlab.sweeps import policy_training, sweep, timings
from simlab.sweeps.grids import grid
from simlab.sweeps.machine_speed import Calibration
from simlab.sweeps.plan import Plan, expand, make_plan
from simlab.sweeps.policy_training import (
    COMPILE_SECONDS,
    SECONDS_PER_COST,
    expected_training_minutes,
    missing_policies,
    train_policies,
    train_policy,
    training_cost,
)
from simlab.sweeps.result_cache import ResultCache
from tests.compiling import compile_quickly
from tests.sweeps.small import BASE, tables

START = {"steps": 2, "batch": 4}
LOCK = """
import sys
from pathlib import Path
from simlab.sweeps.result_cache import ResultCache
cache = ResultCache(Path(sys.argv[1]))
print("locked" if cache.acquire([sys.argv[2]], 1) else "free", flush=True)
sys.stdin.read()
"""


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
    # Two of three processes have two policies between them.
    shared = 2 * (COMPILE_SECONDS + 2 * cost * SECONDS_PER_COST / 2)
    assert expected_training_minutes(plan_of(range(2)), cache, 3) == pytest.approx(shared / 60)
    assert training_cost(plan_of(range(1), steps=6).groups[0].runs[0]) == 3 * cost


def test_each_policy_is_trained_once_and_its_time_kept(cache, monkeypatch, capsys):
    clock = iter([0.0, 9.0, 10.0, 12.0])  # the first one is compiled
    monkeypatch.setattr(policy_training.time, "perf_counter", lambda: next(clock))
    train_policies(plan_of(range(2)), cache)
    assert "initial policy 2 of 2 trained: 2 s" in capsys.readouterr().err
    assert missing_policies(plan_of(range(2)), cache) == {}
    assert expected_training_minutes(plan_of(range(2)), cache) == 0
    # Five more of the same kind, then two of twice the cost.
    assert expected_training_minutes(plan_of(range(7)), cache) == pytest.approx(
        (2 * COMPILE_SECONDS + 5 * 2) / 60
    )
    assert expected_training_minutes(plan_of(range(2), batch=8), cache) == pytest.approx(
        (2 * COMPILE_SECONDS + 2 * 2 * 2) / 60
    )


@pytest.mark.slow
def test_workers_share_the_policies(tmp_path):
    compile_quickly(False)
    starts = [{"seed": seed, **START} for seed in range(3)]
    over = {"warm_start": starts, "seed": [0]}
    alone, shared = (
        sweep(BASE, over, tmp_path / name, runs_per_batch=4, workers=workers)
        for name, workers in (("alone", 0), ("shared", 2))
    )
    assert tables(shared.folder) == tables(alone.folder)
    digests = [
        {path.name: path.read_bytes() for path in (each.folder / "warm_starts").iterdir()}
        for each in (alone, shared)
    ]
    assert digests[0] == digests[1]
    assert len(digests[0]) == len(starts)


def test_policy_that_another_process_trains_is_left_to_it(cache):
    plan = plan_of(range(1))
    ((path, run),) = missing_policies(plan, cache).items()
    command = [sys.executable, "-c", LOCK, str(cache.folder), path.stem]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert train_policy(path, run, cache) is None
        other.communicate("\n")
    assert not path.is_file()
