"""Time calls and sweeps; benchmarks interleave the cases that they compare, in a new order each round."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from simlab.core.json_value import Json
from simlab.studies.experiment import ExperimentContext
from simlab.training.loop import Advance, train
from simlab.training.recipe import Recipe, TrainState

Call = Callable[[], object]

SWEEPS = """
import json, resource, sys, time
from simlab.sweeps import sweep
def read_clocks():
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(each.ru_utime + each.ru_stime for each in used)
clocks, timings = [read_clocks()], []
for call in json.loads(sys.argv[1]):
    result = sweep(call.pop("base"), call.pop("over"), call.pop("out"), yes=True, **call)
    clocks.append(read_clocks())
    timings.append(result.manifest["timings"])
print(json.dumps([clocks, timings]))
"""


def read_clocks() -> np.ndarray:
    """Return the wall and the CPU clock of this process, in seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def compile_call(function: Callable[..., object], *arguments: object) -> Call:
    """Return a call of the compiled function on arguments that are already on the device."""
    compiled = jax.jit(function)
    placed = jax.device_put(arguments)
    return lambda: jax.block_until_ready(compiled(*placed))


def train_call(
    recipe: Recipe, state: TrainState, steps: int, axes: PyTree = None, advance: Advance | None = None
) -> Call:
    """Return a call that computes the next `steps` steps of one run or many, after the last call."""
    last = [jax.tree.map(jnp.copy, state)]  # training donates it

    def train_on() -> None:
        state, _ = train(recipe, last.pop(), steps, chunk=steps, axes=axes, advance=advance)
        last.append(jax.block_until_ready(state))

    return train_on


def time_call(call: Call, clock: Callable[[], Any] = time.perf_counter) -> Any:
    """Return the seconds of one call by `clock`."""
    start = clock()
    call()
    return clock() - start


def median_seconds(call: Call, calls: int) -> float:
    """Return the median seconds of `calls` calls."""
    return float(np.median([time_call(call) for _ in range(calls)]))


def least_seconds(call: Call, budget: float = 0.0, at_least: int = 3) -> float:
    """Return the least seconds of at least `at_least` calls and `budget` seconds, after a warm-up."""
    call()
    seconds: list[float] = []
    while len(seconds) < at_least or sum(seconds) < budget:
        seconds.append(time_call(call))
    return min(seconds)


def run_script(script: str, call: Json, cache: str, package: Path | None = None) -> tuple[float, Json]:
    """Run Python code in a new process; return its seconds and the JSON of the last line that it prints.

    Args:
        script: the code, which reads `call` as JSON from its first argument.
        call: what the code reads.
        cache: folder of compiled functions.
        package: folder to import `simlab` from instead.
    """
    environment = os.environ | {"SIMLAB_CACHE": cache}
    if package is not None:
        environment["PYTHONPATH"] = str(package)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(call)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        cwd=cache if package is not None else None,  # Python looks into its working directory first.
    )
    return time.perf_counter() - start, json.loads(done.stdout.splitlines()[-1])


def time_sweeps(
    calls: Sequence[Mapping[str, Json]], cache: str, package: Path | None = None
) -> tuple[float, np.ndarray, list[dict[str, float]]]:
    """Run sweeps one after another in a new process.

    Args:
        calls: arguments of `sweep`, by name.
        cache: as in `run_script`.
        package: as in `run_script`.

    Returns:
        Seconds of the process; wall and CPU clock before the first sweep and after each [calls + 1, 2]; the
        timings in the manifest of each.
    """
    seconds, (clocks, timings) = run_script(SWEEPS, list(calls), cache, package)
    return seconds, np.array(clocks), timings


def interleave(
    run: ExperimentContext,
    calls: Sequence[Call],
    measure: Callable[[Call], object],
    rounds: int,
    seed: int,
    label: str = "rounds",
) -> np.ndarray:
    """Return `measure` of every call in every round, [rounds, calls, ...]; each call is warmed up once."""
    rng = np.random.default_rng(seed)
    for call in calls:
        call()
    results = []
    for _ in run.track(range(rounds), label):
        row: list[object] = [None] * len(calls)
        for index in rng.permutation(len(calls)):
            row[index] = measure(calls[index])
        results.append(row)
    return np.array(results)
