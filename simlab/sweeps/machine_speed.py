"""Speed of this machine relative to the reference machine, on which the rates of `forecast` were measured."""

import time
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp

REFERENCE_SECONDS = 2.0e-2
"""CPU time of one `_trace` on the reference machine."""
AT_LEAST_SECONDS = 0.5
OPERATIONS = 40


@dataclass(frozen=True)
class Calibration:
    """Wall time of work per CPU second: of the reference machine (`slowness`), of this one (`contention`)."""

    slowness: float
    contention: float


@cache
def calibrate() -> Calibration:
    """Time a fixed trace repeatedly for half a second.

    Like a compilation, a trace is work on a graph in one thread; other processes slow both equally.
    """
    _trace()  # the first trace of a process takes longer
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
