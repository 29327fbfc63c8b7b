"""Measure the time of a sweep against runs, runs per batch, response length, steps and processes.

Times are of the steady state, without compilation; each is the fastest of a few. On an accelerator, batches
have up to 512 runs.
"""

import math
import os
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from experiments.benchmarks import engine_speed
from experiments.benchmarks.timing import time_sweeps
from simlab.core.json_value import Json
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.sweeps.compilation import compile_batch
from simlab.sweeps.config import run_config
from simlab.sweeps.execute import advance_members, build_member
from simlab.sweeps.plan import PlannedRun
from simlab.sweeps.program import BatchedRun, chunk_length, stack_members
from simlab.sweeps.result_cache import ResultCache

BASE: dict[str, Json] = {
    "engines": "f32/fp8-e4m3",
    "objective": "grpo+tis",
    "task": {"name": "recurrence", "difficulty": 16},
    "model": "tiny-dense",
    "prompts_per_step": 4,
    "group_size": 8,
    "minibatches": 2,
    "steps": 10,
}
SMALL = engine_speed.SMALL | {"engines": "f32/f32", "task": {"name": "recurrence", "difficulty": 4}}
RUNS_PER_BATCH = 4
# Enough runs and steps that a second process saves more time than its start takes.
BATCHES, LONG = 4, 200


def run(run: ExperimentContext) -> None:
    base = BASE | (SMALL if run.smoke else {})
    wide = jax.default_backend() != "cpu"
    axes: dict[str, tuple[int, ...]] = {
        "runs_per_batch": (1, 2) if run.smoke else tuple(2**i for i in range(10)) if wide else (1, 2, 4, 8),
        "length": (2, 4) if run.smoke else (8, 16, 32, 64),
        "steps": (10, 20) if run.smoke else (10, 20, 40),
        "runs": (2, 4) if run.smoke else (4, 8, 16),
    }
    runs_per_batch = 2 if run.smoke else RUNS_PER_BATCH
    run.configure(base=base, runs_per_batch=runs_per_batch, axes=axes)
    rows = []
    for axis, values in run.track(axes.items(), "axes"):
        for value in values:
            rows.append({"axis": axis, "value": value} | cost(base, runs_per_batch, axis, value))
    run.table("cost", rows)
    run.table("fits", [fit(axis, rows) for axis in axes])
    with run.phase("processes"):
        steps, calls = (10, 1) if run.smoke else (LONG, 2)
        run.table("processes", processes(base | {"steps": steps}, runs_per_batch, BATCHES, calls))


def cost(base: dict[str, Json], runs_per_batch: int, axis: str, value: int) -> dict[str, float]:
    """Return seconds of compilation and of all runs, and run-steps per second."""
    field = {"length": "task.difficulty", "steps": "steps"}.get(axis)
    config = run_config(base, {field: value} if field else {})
    runs_per_batch = value if axis == "runs_per_batch" else runs_per_batch
    runs = value if axis == "runs" else runs_per_batch
    member = build_member(PlannedRun("", config, ""), ResultCache(Path()))
    compile_seconds = compile_batch(*stack_members([member], runs_per_batch)).seconds
    seconds = min(_seconds(member, runs_per_batch, config.steps, runs) for _ in range(3))
    return {
        "compile_s": compile_seconds,
        "seconds": seconds,
        "run_steps_per_s": runs * config.steps / seconds,
        "chunk": chunk_length(config.steps),
    }


def _seconds(member: BatchedRun, runs_per_batch: int, steps: int, runs: int) -> float:
    start = time.perf_counter()
    for _ in range(-(-runs // runs_per_batch)):
        advance_members([member] * runs_per_batch, runs_per_batch, steps, math.inf, lambda _: None)
    return time.perf_counter() - start


def fit(axis: str, rows: list[dict[str, Json]]) -> dict[str, Json]:
    """The exponent of seconds ~ value^exponent, and the largest deviation from it."""
    points = [(row["value"], row["seconds"]) for row in rows if row["axis"] == axis]
    x, y = np.log(np.asarray(points, float)).T
    exponent, offset = np.polyfit(x, y, 1)
    off = float(np.exp(np.abs(exponent * x + offset - y).max()))
    return {"axis": axis, "exponent": float(exponent), "factor": float(np.exp(offset)), "worst_ratio": off}


def processes(
    base: dict[str, Json], runs_per_batch: int, batches: int, calls: int = 2
) -> list[dict[str, Json]]:
    """Return seconds of the same runs in one process and in one per core, in the last of `calls` sweeps.

    The first sweep compiles. Each process loads the compiled functions from the cache, which counts as time.
    """
    over = {"seed": list(range(runs_per_batch * batches))}
    cores = len(os.sched_getaffinity(0))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count in dict.fromkeys((1, cores)):
            seconds = 0.0
            for number in range(calls):
                call = {"base": base, "over": over, "runs_per_batch": runs_per_batch, "workers": count}
                _, _, (timings,) = time_sweeps([call | {"out": f"{folder}/{count}-{number}"}], folder)
                seconds = timings["runs"]
            rows.append({"processes": count, "seconds": seconds})
    return [row | {"speedup": rows[0]["seconds"] / row["seconds"]} for row in rows]


EXPERIMENT = Experiment(
    name="bench_sweep",
    question="How does the time of a sweep grow, and what does a second process save?",
    decision_rule=(
        "One process per core is worth it if the same runs take at most 1 / 1.5 of the time of one process."
    ),
    minutes=12.0,
    run=run,
)
