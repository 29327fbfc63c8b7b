"""Time of a step under every engine of the catalog: one run and a run batch, wall and CPU seconds.

The calls are those of a sweep: `sample` and `learn` of a batch, with engines as data.
"""

import itertools
import time
from typing import Any

import jax
import numpy as np

from experiments.regimes import BASE
from simlab.core.experiment import Run
from simlab.engines import ENGINES
from simlab.models.parameters import init_params
from simlab.sweeps.compilation import compile_batch
from simlab.sweeps.config import run_config
from simlab.sweeps.program import BatchedRun, stack_members, swept_recipe
from simlab.training.loop import train
from simlab.training.recipe import Recipe, TrainState

BATCH_SIZES = (1, 8)
STEPS, ROUNDS = 5, 5


def build_batch(engine: str, runs_per_batch: int, smoke: bool) -> tuple[Recipe, TrainState]:
    """Return stacked runs of the flagship's shape with inference engine `engine`, trained in float32."""
    small = {"model": {"name": "tiny-dense", "hidden_size": 32, "num_hidden_layers": 1}} if smoke else {}
    changes = {"engines": f"f32/{engine}", "objective": "grpo", "warm_start": None, "steps": STEPS, "seed": 0}
    recipe = swept_recipe(run_config({**BASE, **changes, **small}))
    params = init_params(jax.random.key(0), recipe.model)
    members = [BatchedRun(recipe, params, seed) for seed in range(runs_per_batch)]
    return stack_members(members, runs_per_batch)


def measure_engine(engine: str, runs_per_batch: int, smoke: bool) -> dict[str, Any]:
    """Return seconds of one step of one batch, the least of some rounds, and what the compilation took."""
    recipe, state = build_batch(engine, runs_per_batch, smoke)
    cpu = time.process_time()
    program = compile_batch(recipe, state)
    compile_cpu = time.process_time() - cpu
    # The loop of a sweep, a chunk per round.
    seconds = np.empty((1 if smoke else ROUNDS, 2))
    for row in seconds:
        start = np.array([time.perf_counter(), time.process_time()])
        state, _ = train(
            recipe, state, STEPS, chunk=STEPS, axes=(0, 0), advance=lambda r, s: program.advance(STEPS, r, s)
        )
        row[:] = (np.array([time.perf_counter(), time.process_time()]) - start) / STEPS
    wall, cpu = seconds.min(axis=0)
    return {
        "engine": engine,
        "runs_per_batch": runs_per_batch,
        "ms": 1e3 * float(wall),
        "cpu_ms": 1e3 * float(cpu),
        "compile_seconds": program.seconds,
        "compile_cpu_seconds": compile_cpu,
    }


def measure_engines(run: Run) -> list[dict[str, Any]]:
    """Return the rows of all engines; `ratio` is to float32 at the same number of runs."""
    engines = ("f32", "bf16") if run.smoke else tuple(ENGINES)
    sizes = (2,) if run.smoke else BATCH_SIZES
    rows = [
        measure_engine(engine, size, run.smoke)
        for engine, size in run.track(list(itertools.product(engines, sizes)), "engines")
    ]
    plain = {row["runs_per_batch"]: row["ms"] for row in rows if row["engine"] == "f32"}
    return [row | {"ratio": row["ms"] / plain[row["runs_per_batch"]]} for row in rows]
