"""Speed of this machine at this moment, against the one on which the rates of the forecast were measured."""

import time
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp

REFERENCE_SECONDS = 2.0e-2
"""CPU time of one `_trace` on the machine of the rates in `forecast`."""
AT_LEAST_SECONDS = 0.5
OPERATIONS = 40


@dataclass(frozen=True)
class Calibration:
    """How long work takes: `slowness` is wall time per CPU time of the reference, `contention` per ours."""

    slowness: float
    contention: float


@cache
def calibrate() -> Calibration:
    """Time a fixed trace again and again for half a second.

    Like a compilation it is work on a graph in one thread, and other processes on the same cores slow it
    down as they do the compilation.
    """
    _trace()  # what the first trace of a process does besides
    wall, cpu, traces = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - wall < AT_LEAST_SECONDS:
        _trace()
        traces += 1
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Calibration(wall / traces / REFERENCE_SECONDS, max(1.0, wall / cpu))


def _trace() -> None:
    def work(x: jax.Array) -> jax.Array:
        for _ in range(OPERATIONS):
            x = jnp.where(x > 0, x * x, jnp.tanh(x) + 1.0)
        return x

    # A new function each time: JAX keeps the trace of one that it has seen.
    jax.make_jaxpr(work)(jax.ShapeDtypeStruct((4, 4), "float32"))
