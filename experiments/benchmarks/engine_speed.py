"""Measure a step under every engine: one run and a batch, cold and warm, wall and CPU seconds.

The calls are those of a sweep: `sample` and `learn` of a batch whose engines are constants. Training is in
float32, so all engines share `learn`.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from experiments.benchmarks.timing import Call, read_clocks, time_call, train_call
from experiments.regimes import BASE
from simlab.core.backend import compile_cache_folder
from simlab.core.json_value import Json
from simlab.engines import ENGINES
from simlab.models.parameters import init_params
from simlab.studies.experiment import ExperimentContext
from simlab.sweeps.compilation import compile_batch, forget_compiled
from simlab.sweeps.config import recipe_of, run_config
from simlab.sweeps.program import BatchedRun, stack_members, swept_recipe
from simlab.training.recipe import Recipe, TrainState

BATCH = 8
STEPS, ROUNDS = 4, 3
SMALL = {
    "model": {"name": "tiny-dense", "hidden_size": 32, "num_hidden_layers": 1},
    "prompts_per_step": 2,
    "group_size": 2,
    "minibatches": 1,
}


def build_batch(
    engine: str, runs_per_batch: int, smoke: bool, is_constant: bool = True
) -> tuple[Recipe, TrainState]:
    """Return stacked runs of the flagship's shape with inference engine `engine`, trained in float32."""
    changes = {"engines": f"f32/{engine}", "objective": "grpo", "warm_start": None, "steps": STEPS, "seed": 0}
    config = run_config({**BASE, **changes, **(SMALL if smoke else {})})
    recipe = swept_recipe(config)
    if not is_constant:
        recipe = replace(recipe, engines=recipe_of(config).engines)
    return stack_runs(recipe, runs_per_batch)


def stack_runs(recipe: Recipe, runs_per_batch: int) -> tuple[Recipe, TrainState]:
    """Return stacked runs of a recipe under `runs_per_batch` seeds, from the same new parameters."""
    params = init_params(jax.random.key(0), recipe.model)
    members = [BatchedRun(recipe, params, seed) for seed in range(runs_per_batch)]
    return stack_members(members, runs_per_batch)


@contextmanager
def temporary_cache() -> Iterator[None]:
    """Keep compiled functions in a folder of this benchmark, empty at first."""
    before = compile_cache_folder()
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", str(Path(folder, "programs")))
        compilation_cache.reset_cache()
        try:
            yield
        finally:
            jax.config.update("jax_compilation_cache_dir", None if before is None else str(before))
            compilation_cache.reset_cache()


def compile_engine(engine: str, runs_per_batch: int, smoke: bool) -> tuple[dict[str, Json], Call]:
    """Return the seconds of compiling a batch, and a call that computes its next steps.

    `cold` is a new engine: `sample` is compiled; `learn` is compiled only for the first engine of a size.
    `warm` reads both from the cache folder, as a second process does.
    """
    recipe, state = build_batch(engine, runs_per_batch, smoke)
    compile_once = partial(compile_batch, recipe, state)
    forget_compiled()
    cold = time_call(compile_once, read_clocks)
    forget_compiled()
    warm = time_call(compile_once, read_clocks)
    advance = partial(compile_once().advance, STEPS)
    row = {"engine": engine, "runs_per_batch": runs_per_batch}
    row |= {"cold_seconds": cold[0], "cold_cpu_seconds": cold[1]}
    row |= {"warm_seconds": warm[0], "warm_cpu_seconds": warm[1]}
    return row, train_call(recipe, state, STEPS, axes=(0, 0), advance=advance)


def time_step(call: Call, plain: Call, runs_per_batch: int, rounds: int) -> dict[str, Json]:
    """Return the least seconds of one step, absolute and relative to the float32 step `plain`.

    Both are timed in the same rounds, so that a slow minute of the machine slows both.
    """
    calls = call, plain
    seconds = np.array([[time_call(each, read_clocks) / STEPS for each in calls] for _ in range(rounds)])
    (wall, cpu), (plain_wall, _) = seconds.min(axis=0)
    ratio, speed = wall / plain_wall, runs_per_batch / wall
    return {"ms": 1e3 * wall, "cpu_ms": 1e3 * cpu, "ratio": ratio, "run_steps_per_s": speed}


def measure_engines(run: ExperimentContext) -> list[dict[str, Json]]:
    """Return a row for each engine of the catalog in a batch, and for a single run; the first is float32."""
    engines, sizes, rounds = (("f32", "bf16"), (2, 1), 1) if run.smoke else (ENGINES, (BATCH, 1), ROUNDS)
    rows, plain = [], {}
    with temporary_cache():
        for engine, size in run.track([(engine, size) for size in sizes for engine in engines], "engines"):
            row, call = compile_engine(engine, size, run.smoke)
            rows.append(row | time_step(call, plain.setdefault(size, call), size, rounds))
    return rows
