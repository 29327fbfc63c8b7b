"""Measure the time of a sweep in a new process, to its first step and to its end, and its forecast.

Each sweep runs in its own processes, with an empty or a filled cache. `process_seconds` starts with the
process, `seconds` after the import of simlab, and `remaining_seconds` when the forecast is printed.
`cpu_seconds` is the CPU time of all processes.
"""

import os
import tempfile

from experiments.benchmarks.engine_speed import SMALL
from experiments.benchmarks.timing import time_sweeps
from experiments.regimes import BASE
from simlab.core.json_value import Json
from simlab.studies.experiment import Experiment, ExperimentContext

WITHIN = 1.5
"""Largest ratio of forecast and measured time, in either direction."""
FIRST_STEPS = {"empty cache": 20.0, "new engine pair": 10.0, "filled cache": 3.0}
"""Largest allowed seconds of a sweep of one step, by the state of the cache."""
PLAIN: dict[str, Json] = {**BASE, "objective": "grpo", "warm_start": None, "engines": "f32/bf16", "steps": 20}
LONG = {"task": {"name": "recurrence", "difficulty": 64}, "prompts_per_step": 4, "group_size": 8}
SWEEPS: dict[str, tuple[dict[str, Json], dict[str, Json], int]] = {
    "edited engine": ({"infer_mantissa_bits": 5}, {"seed": list(range(4))}, 0),
    "dense, float32": ({"engines": "f32/f32"}, {"seed": list(range(4))}, 0),
    "dense, bf16": ({}, {"seed": list(range(4))}, 0),
    "dense, FP8": ({"engines": "f32/fp8-e4m3"}, {"seed": list(range(4))}, 0),
    "MoE": ({"model": "tiny-moe"}, {"seed": list(range(4))}, 0),
    "critic": ({"objective": "ppo", "critic": {}}, {"seed": list(range(4))}, 0),
    "long responses": (LONG, {"seed": list(range(4))}, 0),
    "three engine pairs": ({}, {"engines": ["f32/f32", "f32/bf16", "f32/fp8-e4m3"], "seed": [0, 1]}, 2),
    "several objectives": ({}, {"objective": ["grpo", "gspo", "grpo+tis"], "seed": [0, 1]}, 0),
    "many runs": ({"engines": "f32/f32"}, {"seed": list(range(32))}, 2),
}
"""Name -> changes of `PLAIN`, grid, worker processes."""


def time_sweep(
    base: dict[str, Json], over: dict[str, Json], out: str, cache: str, workers: int = 0
) -> dict[str, float]:
    """Return forecast, wall and CPU seconds of one sweep in its own process."""
    call = {"base": base, "over": over, "out": out, "workers": workers}
    process_seconds, (start, end), (timings,) = time_sweeps([call], cache)
    expected, remaining = timings["expected"], timings["runs"]
    return {
        "expected_seconds": expected,
        "remaining_seconds": remaining,
        "process_seconds": process_seconds,
        "seconds": end[0] - start[0],
        "cpu_seconds": end[1],
        "off_by": max(expected, remaining) / min(expected, remaining),
    }


def measure_sweep(name: str, folder: str) -> list[dict[str, Json]]:
    """Return the rows of a sweep with an empty cache, and of one with other seeds and the filled cache."""
    changes, over, workers = SWEEPS[name]
    rows, cache = [], f"{folder}/cache"
    for number, state in enumerate(("empty", "filled")):
        seeds = [seed + 100 * number for seed in over["seed"]]
        timed = time_sweep(PLAIN | changes, over | {"seed": seeds}, f"{folder}/{state}", cache, workers)
        rows.append({"sweep": name, "cache": state, "processes": workers, **timed})
    return rows


def measure_first_steps(run: ExperimentContext) -> list[dict[str, Json]]:
    """Return the rows of sweeps of one step and one run; `empty cache` fills the cache of the others."""
    pairs = {"empty cache": "f32/bf16", "new engine pair": "f32/fp8-e4m3", "filled cache": "f32/bf16"}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed, (state, pair) in enumerate(run.track(list(pairs.items()), "first steps")):
            base = PLAIN | {"steps": 1, "engines": pair} | (SMALL if run.smoke else {})
            timed = time_sweep(base, {"seed": [seed]}, f"{folder}/{seed}", f"{folder}/cache")
            rows.append({"sweep": "one step", "cache": state, "engines": pair, **timed})
    return rows


def run(run: ExperimentContext) -> None:
    names = [] if run.smoke else list(SWEEPS)
    run.configure(base=PLAIN, sweeps={name: SWEEPS[name] for name in names}, within=WITHIN)
    run.configure(first_steps=FIRST_STEPS, load=list(os.getloadavg()))
    firsts = measure_first_steps(run)
    run.table("first_steps", firsts)
    for row in firsts:
        limit = FIRST_STEPS[row["cache"]]
        run.report(f"first step, {row['cache']}: {row['seconds']:.1f} s (at most {limit:g} wanted)")
    rows = []
    for name in run.track(names, "sweeps"):
        with tempfile.TemporaryDirectory() as folder:
            rows += measure_sweep(name, folder)
    forecasts = rows or firsts
    run.table("sweeps", forecasts)
    good = sum(row["off_by"] <= WITHIN for row in forecasts)
    run.report(f"forecast within a factor {WITHIN}: {good} of {len(forecasts)}")


EXPERIMENT = Experiment(
    name="bench_compile",
    question="How long does a new process take for a first step and for a sweep, and is the forecast right?",
    decision_rule=f"The forecast is right if it is within a factor {WITHIN} of the time of all sweeps, with "
    "an empty and a filled cache. A sweep of one step takes at most "
    f"{FIRST_STEPS['empty cache']:g} s with an empty cache, {FIRST_STEPS['new engine pair']:g} s with a new "
    f"engine pair, {FIRST_STEPS['filled cache']:g} s otherwise.",
    run=run,
    minutes=7.0,
)
