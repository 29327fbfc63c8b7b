"""Run ten thousand steps: memory after each chunk, and the last tenth repeated from a checkpoint."""

import shutil
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np

from experiments.benchmarks.fault_table import SWEEP
from simlab.core.backend import enable_compile_cache
from simlab.models.parameters import init_params
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.sweeps.config import recipe_of, run_config
from simlab.sweeps.memory import resident_bytes
from simlab.training.checkpoints import UnfinishedRun, load_progress
from simlab.training.loop import CheckpointWriter, Chunk, resume, train
from simlab.training.recipe import initial_state

STEPS, CHUNK = 10_000, 50
# Memory of compilation and first allocations is not growth.
WARM_UP = 0.1
BOUND_MB = 16.0


def run(run: ExperimentContext) -> None:
    if not sys.platform.startswith("linux"):
        raise SystemExit("long_run reads /proc/self/statm, which only Linux has")
    steps, chunk = (60, 3) if run.smoke else (STEPS, CHUNK)
    (seed,) = run.seeds([0])
    base = tomllib.loads(SWEEP % (steps, [seed]))["base"]
    config = run_config(base | {"objective": "grpo"})
    run.configure(config=config.as_dict(), chunk=chunk, bound_mb=BOUND_MB)
    enable_compile_cache()
    recipe = recipe_of(config)
    params = init_params(jax.random.key(seed), recipe.model)
    start = partial(initial_state, recipe, params, jax.random.key(seed))
    with tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder, "run.npz"), Path(folder, "copy.npz")
        rows: list[dict[str, float]] = []
        with run.phase("run"):

            def measure(done: Chunk) -> None:
                memory = {"resident_mb": resident_bytes() / 1e6, "arrays": len(jax.live_arrays())}
                rows.append({"step": done.step, **memory})
                if done.step == steps - steps // 10:
                    shutil.copy(path, copy)

            with run.progress("run", steps, chunk) as advance:
                train(recipe, start(), steps, [CheckpointWriter(path, 0), measure, advance], chunk=chunk)
        with run.phase("again"):
            again: list[int] = []
            state, history = resume(copy, start())
            callbacks = [CheckpointWriter(copy), lambda done: again.append(done.step)]
            train(recipe, state, steps, callbacks, chunk=chunk, history=history)
        one, other = (load_progress(each) for each in (path, copy))
    run.table("memory", rows)
    verdict = compare_memory_and_bits(rows, one, other) | {"steps": steps, "resumed_chunks": len(again)}
    run.table("verdict", [verdict])
    run.report(
        f"{steps} steps, {steps / run.timings['run']:.0f} steps/s: memory grew by "
        f"{verdict['growth_mb']:.1f} MB after the warm-up (at most {verdict['bound_mb']:.1f} MB wanted, of "
        f"which {verdict['metrics_mb']:.1f} are the run's metrics); the last tenth again from its "
        f"checkpoint: {'the same' if verdict['same_bits'] else 'other'} bits"
    )


def compare_memory_and_bits(
    rows: Sequence[Mapping[str, float]], one: UnfinishedRun, other: UnfinishedRun
) -> dict[str, float]:
    """Return the memory growth after the warm-up, and whether both ends of the run are bitwise identical."""
    resident = np.asarray([row["resident_mb"] for row in rows])
    warm = resident[int(WARM_UP * len(rows)) :]
    part = max(1, len(rows) // 10)
    metrics_mb = sum(np.asarray(values).nbytes for values in one.metrics.values()) / 1e6
    growth = float(np.median(warm[-part:]) - np.median(warm[:part]))
    same = all(
        np.array_equal(getattr(one, kind)[name], getattr(other, kind)[name], equal_nan=True)
        for kind in ("state", "metrics")
        for name in getattr(one, kind)
    )
    return {
        "growth_mb": growth,
        "metrics_mb": metrics_mb,
        "bound_mb": BOUND_MB + metrics_mb,
        "flat": growth <= BOUND_MB + metrics_mb,
        "most_arrays": max(row["arrays"] for row in rows[1:]),
        "same_bits": same,
    }


EXPERIMENT = Experiment(
    name="long_run",
    question="Does memory stay flat over ten thousand steps, and does a checkpoint give the same end?",
    decision_rule=f"Flat if the resident memory of the last tenth of the run is at most {BOUND_MB:g} MB and "
    "the size of the run's metrics above that of the second tenth; the end from a checkpoint is the same if "
    "every bit of the state and of the metrics is.",
    run=run,
    minutes=1.0,
)
