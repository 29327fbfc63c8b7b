"""Measure the throughput of parallel flagship runs against the roofline of the device in the same run.

Operations and bytes are those of the matrix products (`step_floor`). Each product reads its operands and
writes its result once. The time of emulation, norms and sampling counts as lost. Operands in a cache can be
read faster than the memory whose speed is the ceiling.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import step_floor
from experiments.benchmarks.engine_speed import stack_runs
from experiments.benchmarks.quantize_speed import InPlace
from experiments.benchmarks.step_floor import Product
from experiments.benchmarks.sweep_cost import BATCHES, LONG, RUNS_PER_BATCH, SMALL, processes
from experiments.benchmarks.timing import least_seconds, train_call
from experiments.regimes import BASE
from simlab.core.backend import compiler_options, enable_compile_cache
from simlab.core.json_value import Json
from simlab.engines.accumulate import float32_dot
from simlab.formats import FORMATS, quantize
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.sweeps.config import RunConfig, run_config
from simlab.sweeps.program import swept_recipe
from simlab.training.loop import build_advance, map_updates
from simlab.training.recipe import Recipe, TrainState
from simlab.training.step import learn, rollout, score

STEPS = 10
MEASURED, NO_MEMORY, NO_TIME = "measured", "out of memory", "over the time limit"
QUANTIZER, ROLLOUT = 0.85, 2.0


@dataclass(frozen=True)
class Ceilings:
    """Float32 operations per second of a large product, and bytes per second of an update in place."""

    operations: float
    bytes: float

    def seconds(self, products: Counter[Product], runs: int) -> float:
        """Return the minimum seconds of these products for `runs` runs, from the lower ceiling of each."""
        each = {p: max(p.flops / self.operations, p.bytes / self.bytes) for p in products}
        return runs * sum(count * each[product] for product, count in products.items())


def is_cpu() -> bool:
    return jax.default_backend() == "cpu"


def ceilings(smoke: bool) -> tuple[Ceilings, float]:
    """Return the ceilings of the device, and the quantizer's speed relative to a copy in place."""
    side, elements = (128, 2**16) if smoke else (1024, 2**24) if is_cpu() else (8192, 2**28)
    budget = 0.01 if smoke else 0.5
    a = jnp.ones((side, side), jnp.float32)
    dot = jax.jit(float32_dot)
    product = least_seconds(lambda: dot(a, a).block_until_ready(), budget)
    x = np.linspace(-500, 500, elements, dtype=np.float32)
    copy = least_seconds(InPlace(lambda v: v + 1, x), budget)
    quantizer = least_seconds(InPlace(quantize, x, FORMATS["e4m3fn"]), budget)
    return Ceilings(2 * side**3 / product, 8 * elements / copy), copy / quantizer


@dataclass(frozen=True)
class Stages:
    """The compiled stages of a step of a run batch, their arguments, and seconds to compile them."""

    recipe: Recipe
    state: TrainState
    rollout: jax.stages.Compiled
    score: jax.stages.Compiled
    learn: jax.stages.Compiled
    compile_seconds: float


def compile_stages(config: RunConfig, smoke: bool, runs_per_batch: int) -> Stages:
    """Compile the stages of a step of a run batch in parallel, and return them."""
    start = time.perf_counter()
    recipe, state = stack_runs(swept_recipe(config), runs_per_batch)
    options = {"xla_backend_optimization_level": 0} if smoke else compiler_options()
    compiled = partial(jax.jit, compiler_options=options)
    sampled = compiled(jax.vmap(rollout)).lower(recipe, state)
    trajectory = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), sampled.out_info)
    lowered = [
        sampled,
        compiled(jax.vmap(score)).lower(recipe, state.params, trajectory),
        compiled(map_updates(learn), donate_argnums=1).lower(recipe, state, trajectory),
    ]
    with ThreadPoolExecutor(len(lowered)) as pool:
        stages = pool.map(lambda each: each.compile(), lowered)
    return Stages(recipe, state, *stages, compile_seconds=time.perf_counter() - start)


def compile_all(config: RunConfig, smoke: bool, batch_sizes: Sequence[int]) -> Iterator[Stages]:
    """Return the stages of every batch size; on an accelerator, compile all of them before timing."""
    compile_size = partial(compile_stages, config, smoke)
    if is_cpu():
        return map(compile_size, batch_sizes)
    with ThreadPoolExecutor(len(batch_sizes)) as pool:
        return iter(list(pool.map(compile_size, batch_sizes)))


def stage_seconds(stages: Stages, smoke: bool) -> dict[str, float]:
    """Return seconds of each stage of one step of a run batch."""
    recipe, state = stages.recipe, stages.state
    trajectory = jax.block_until_ready(stages.rollout(recipe, state))
    advance = build_advance(stages.rollout, stages.learn, STEPS)
    step = train_call(recipe, state, STEPS, axes=(0, 0), advance=advance)
    budget = 0.01 if smoke else 1.0
    sampling = least_seconds(lambda: jax.block_until_ready(stages.rollout(recipe, state)), budget)
    read = partial(stages.score, recipe, state.params, trajectory)
    scoring = least_seconds(lambda: jax.block_until_ready(read()), budget)
    step_seconds = least_seconds(step, budget) / STEPS
    updates = step_seconds - sampling - scoring
    return {"rollout": sampling, "score": scoring, "updates": updates, "step": step_seconds}


def rows_of(
    recipe: Recipe, runs_per_batch: int, seconds: dict[str, float], compile_seconds: float, limit: Ceilings
) -> list[dict[str, Json]]:
    """Return the rows of a batch size."""
    prompt_length = recipe.task.prompts(jax.random.key(0), 1).shape[1]
    tokens = runs_per_batch * recipe.prompts_per_step * recipe.group_size * recipe.task.response_length
    rows = []
    for stage, products in step_floor.by_stage(recipe, prompt_length).items():
        operations = runs_per_batch * sum(p.flops * count for p, count in products.items())
        traffic = runs_per_batch * sum(p.bytes * count for p, count in products.items())
        taken = seconds[stage]
        rows.append(
            {
                "runs_per_batch": runs_per_batch,
                "stage": stage,
                "status": MEASURED,
                "ms": 1e3 * taken,
                "run_steps_per_s": runs_per_batch / seconds["step"],
                "tokens_per_s": tokens / taken,
                "operations": float(operations),
                "bytes": float(traffic),
                "of_product_rate": operations / taken / limit.operations,
                "of_copy_rate": traffic / taken / limit.bytes,
                "of_roofline": limit.seconds(products, runs_per_batch) / taken,
                "compile_s": compile_seconds,
            }
        )
    return rows


def measure(
    run: ExperimentContext, batch_sizes: Sequence[int] | None = None, limit_seconds: float = 420.0
) -> None:
    """Measure increasing batch sizes until memory or the time limit is exhausted."""
    default = (2,) if run.smoke else (1, 2, 4, 8) if is_cpu() else (1, 16, 64, 256, 1024)
    batch_sizes = sorted(batch_sizes or default)
    enable_compile_cache()
    base = {**BASE, "objective": "grpo+tis"}
    config = run_config(base | {"steps": STEPS} | (SMALL if run.smoke else {}))
    run.configure(config=config.as_dict(), batch_sizes=batch_sizes, limit_seconds=limit_seconds)
    began = time.perf_counter()
    limit, quantizer = ceilings(run.smoke)
    names = ["float32 product, operations/s", "copy in place, bytes/s", "quantizer / copy"]
    run.table("ceilings", {"quantity": names, "value": [limit.operations, limit.bytes, quantizer]})
    rows: list[dict[str, Json]] = []
    compiled = compile_all(config, run.smoke, batch_sizes)
    for runs_per_batch in run.track(batch_sizes, "batch_sizes"):
        if rows and time.perf_counter() - began + _expect_seconds(rows, runs_per_batch) > limit_seconds:
            rows.append({"runs_per_batch": runs_per_batch, "stage": "step", "status": NO_TIME})
            break
        try:
            stages = next(compiled)
            seconds = stage_seconds(stages, run.smoke)
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            rows.append({"runs_per_batch": runs_per_batch, "stage": "step", "status": NO_MEMORY})
            break
        rows += rows_of(swept_recipe(config), runs_per_batch, seconds, stages.compile_seconds, limit)
    run.table("batch_sizes", rows)
    if is_cpu() and not run.smoke:
        sweeps = processes(base | {"steps": LONG}, RUNS_PER_BATCH, BATCHES)
        steps = RUNS_PER_BATCH * BATCHES * LONG
        run.table("processes", [row | {"run_steps_per_s": steps / row["seconds"]} for row in sweeps])
    run.table("verdicts", judge(rows, quantizer))


def _expect_seconds(rows: list[dict[str, Json]], runs_per_batch: int) -> float:
    """Return the expected seconds of a batch size: the last compile time, calls scaled by the size."""
    last = rows[-1]
    return last["compile_s"] + 16 * (STEPS + 2) * 1e-3 * last["ms"] * runs_per_batch / last["runs_per_batch"]


def judge(rows: list[dict[str, Json]], quantizer: float) -> list[dict[str, Json]]:
    """Return the decision rules with the measured numbers."""
    times = {(row["runs_per_batch"], row["stage"]): row["ms"] for row in rows if row["status"] == MEASURED}
    widest = max(runs_per_batch for runs_per_batch, _ in times)
    shared = times[widest, "rollout"] / times[widest, "updates"]
    return [
        {"rule": "quantizer / copy", "value": quantizer, "bound": QUANTIZER, "holds": quantizer >= QUANTIZER},
        {"rule": "rollout / updates, widest", "value": shared, "bound": ROLLOUT, "holds": shared <= ROLLOUT},
    ]


def measure_gpu(run: ExperimentContext) -> None:
    """Measure on a GPU alone; smoke mode runs anywhere."""
    if not run.smoke and jax.default_backend() != "gpu":
        raise SystemExit(f"bench_gpu needs a GPU; jax sees none here, only: {jax.default_backend()}")
    measure(run)


EXPERIMENT = Experiment(
    name="bench_device",
    question="How many run-steps per second does this device compute, at what fraction of its roofline?",
    decision_rule=f"The quantizer reaches {QUANTIZER} of an in-place x + 1; the rollout of the largest batch "
    f"takes at most {ROLLOUT:g} times its updates; on an accelerator 256 runs at once make at least 50 times "
    "the run-steps per second of `processes`, one per core, in a run on two CPU cores.",
    run=measure,
    minutes=11.0,
)
GPU_EXPERIMENT = replace(
    EXPERIMENT,
    name="bench_gpu",
    question="How many run-steps per second does a GPU compute, at what fraction of its roofline?",
    run=measure_gpu,
    minutes=2.0,
)
