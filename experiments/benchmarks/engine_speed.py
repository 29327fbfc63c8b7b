"""Measure a step under engines of each kind: one run and a batch, cold and warm, wall and CPU seconds.

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

from experiments.benchmarks.timing import read_clocks, time_call, train_call
from experiments.regimes import BASE
from simlab.core.experiment import ExperimentContext
from simlab.core.json_value import Json
from simlab.models.parameters import init_params
from simlab.sweeps.compilation import compile_batch, forget_compiled
from simlab.sweeps.compile_cache import compile_cache_folder
from simlab.sweeps.config import recipe_of, run_config
from simlab.sweeps.program import BatchedRun, stack_members, swept_recipe
from simlab.training.recipe import Recipe, TrainState

BATCH = 8
TIMED = (
    "f32", "bf16", "fp8-e4m3", "fp8-s2-truncated-all", "vllm-bf16", "bf16-fp8kv", "int8-w8a8", "int4-g128",
    "fp8-block128", "mxfp8", "nvfp4", "h100-bf16",
)  # fmt: skip
"""Engines that are timed in a batch: one of each kind of sites, scaling and sum. Others of the catalog differ
in format, group size or ranks; all 64 would take half an hour of compilation."""
ALONE = TIMED[:5]
"""Engines that are timed for one run too."""
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


def measure_engine(engine: str, runs_per_batch: int, smoke: bool) -> dict[str, Json]:
    """Return the least seconds of one step of a batch over some rounds, and the time of the compilation.

    `cold` is a new engine: `sample` is compiled; `learn` is compiled only for the first engine of a size.
    `warm` reads both from the cache folder, as a second process does.
    """
    recipe, state = build_batch(engine, runs_per_batch, smoke)
    compile_once = partial(compile_batch, recipe, state)
    cold = time_call(compile_once, read_clocks)
    forget_compiled()
    warm = time_call(compile_once, read_clocks)
    advance = partial(compile_once().advance, STEPS)
    call = train_call(recipe, state, STEPS, axes=(0, 0), advance=advance)
    rounds = [time_call(call, read_clocks) / STEPS for _ in range(1 if smoke else ROUNDS)]
    wall, cpu = np.min(rounds, axis=0)
    row = {"engine": engine, "runs_per_batch": runs_per_batch, "ms": 1e3 * wall, "cpu_ms": 1e3 * cpu}
    return row | {
        "run_steps_per_s": runs_per_batch / wall,
        "cold_seconds": cold[0],
        "cold_cpu_seconds": cold[1],
        "warm_seconds": warm[0],
        "warm_cpu_seconds": warm[1],
    }


def measure_engines(run: ExperimentContext) -> list[dict[str, Json]]:
    """Return rows of `TIMED` in a batch and of `ALONE` for one run; `ratio` is relative to float32."""
    engines, alone, batch = (TIMED[:2], TIMED[:1], 2) if run.smoke else (TIMED, ALONE, BATCH)
    cases = [(engine, batch) for engine in engines] + [(engine, 1) for engine in alone]
    with temporary_cache():
        rows = [measure_engine(engine, size, run.smoke) for engine, size in run.track(cases, "engines")]
    plain = {row["runs_per_batch"]: row["ms"] for row in rows if row["engine"] == "f32"}
    return [row | {"ratio": row["ms"] / plain[row["runs_per_batch"]]} for row in rows]
