"""Run-steps per second of all cores, one process of one thread each: simlab and compiled PyTorch.

Both take the recipe of `step_speed` under its emulated engine. Processes start together, because two of them
share caches and memory bandwidth.
"""

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing.synchronize import Barrier

import jax

from experiments.benchmarks.engine_speed import STEPS, stack_runs
from experiments.benchmarks.step_speed_peers import EMULATED, Peer, name_peer, recipe_of
from experiments.benchmarks.timing import Call, train_call
from simlab.core.backend import compute_on_one_thread, enable_compile_cache
from simlab.core.json_value import Json
from simlab.models.parameters import init_params
from simlab.sweeps.compilation import compile_batch
from simlab.sweeps.config import run_config
from simlab.sweeps.program import swept_recipe

SECONDS = 20.0
IMPLEMENTATIONS = {"simlab, one run": 1, "simlab, eight runs": 8, "pytorch, one run": 1}
"""Runs that a process computes side by side, by implementation."""
_SHARED: dict[str, Barrier] = {}


def measure_machine(smoke: bool, has_torch: bool) -> list[dict[str, Json]]:
    """Return run-steps per second of one process and of one per core, by implementation."""
    counts = sorted({1, os.cpu_count() or 1})
    rows = []
    for implementation, runs in IMPLEMENTATIONS.items():
        if implementation.startswith("simlab") or has_torch:
            for count in counts:
                rate = _rate_of_processes(implementation, count, smoke)
                row = {"implementation": implementation, "processes": count, "runs_per_process": runs}
                rows.append(row | {"run_steps_per_s": rate})
    return rows


def _rate_of_processes(implementation: str, count: int, smoke: bool) -> float:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    with ProcessPoolExecutor(count, context, _share, (barrier,)) as pool:
        return sum(pool.map(partial(_rate_of_process, implementation, smoke), range(count)))


def _share(barrier: Barrier) -> None:
    _SHARED["barrier"] = barrier
    compute_on_one_thread()
    enable_compile_cache()


def _rate_of_process(implementation: str, smoke: bool, number: int) -> float:
    """Return the run-steps per second of this process."""
    del number
    runs = IMPLEMENTATIONS[implementation]
    call, steps = _torch_call() if implementation.startswith("pytorch") else _simlab_call(runs, smoke)
    call()
    _SHARED["barrier"].wait()
    start, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - start < (0 if smoke else SECONDS):
        call()
        calls += 1
    return calls * steps * runs / (time.perf_counter() - start)


def _simlab_call(runs: int, smoke: bool) -> tuple[Call, int]:
    recipe = recipe_of(EMULATED, smoke)
    config = {
        "engines": EMULATED,
        "objective": "grpo",
        "task": "add",
        "model": {"name": "tiny-dense", **asdict(recipe.model)},
        "prompts_per_step": recipe.prompts_per_step,
        "group_size": recipe.group_size,
        "minibatches": recipe.minibatches,
        "steps": STEPS,
    }
    recipe, state = stack_runs(swept_recipe(run_config(config)), runs)
    advance = partial(compile_batch(recipe, state).advance, STEPS)
    return train_call(recipe, state, STEPS, axes=(0, 0), advance=advance), STEPS


def _torch_call() -> tuple[Call, int]:
    recipe = recipe_of(EMULATED, smoke=False)
    peer = Peer(1, recipe, init_params(jax.random.key(0), recipe.model))
    return peer.cases()[name_peer("pytorch", 1), "step"], 1
