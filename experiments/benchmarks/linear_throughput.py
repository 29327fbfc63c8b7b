"""Time of matrix products under every accumulator and engine, as a multiple of one float32 product."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from simlab.core.experiment import Experiment, Run
from simlab.engines import ACCUMULATORS, ENGINES, linear, matmul, quantize_weights
from simlab.formats import quantize

SHAPES = {"wide": (1024, 256, 1024), "toy": (128, 64, 192)}
SMOKE_SHAPES = {"toy": (16, 32, 48)}
FP8_LIMIT, PARTIAL_LIMIT = 1.2, 2.2
LIMITS = {"fp8-e4m3": FP8_LIMIT, "bf16-partial-32": PARTIAL_LIMIT}


@dataclass(frozen=True)
class Case:
    """A timed call; `variant` says what of it was known to the compiler."""

    kind: str
    name: str
    variant: str
    call: Callable[[], Any]


def compiled(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """Return a call of the compiled function on arguments that are on the device already."""
    program = jax.jit(function)
    placed = jax.device_put(arguments)
    return lambda: jax.block_until_ready(program(*placed))


def operands(shape: tuple[int, int, int], seed: int) -> tuple[jax.Array, jax.Array]:
    """Normal activations [M, K] and weights [K, N]."""
    rng = np.random.default_rng(seed)
    rows, terms, columns = shape
    x, w = rng.standard_normal((rows, terms)), rng.standard_normal((terms, columns)) * terms**-0.5
    return jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32)


def cases(x: jax.Array, w: jax.Array, names: Collection[str]) -> list[Case]:
    """The named accumulators on BF16 operands and engines on float32 ones, as constants and as arguments."""
    a, b = quantize(x, "bf16"), quantize(w, "bf16")
    listed = []
    for name, accumulator in _named(ACCUMULATORS, names):
        static = compiled(lambda a, b, n=name: matmul(a, b, accumulator=n), a, b)
        traced = compiled(lambda a, b, acc: matmul(a, b, accumulator=acc), a, b, accumulator)
        listed.append(Case("accumulator", name, "static", static))
        if jax.tree.leaves(accumulator):
            listed.append(Case("accumulator", name, "traced", traced))
    for name, engine in _named(ENGINES, names):
        listed.append(Case("engine", name, "static", compiled(lambda x, w, n=name: linear(x, w, n), x, w)))
        if jax.tree.leaves(engine):
            listed.append(Case("engine", name, "traced", compiled(linear, x, w, engine)))
            ready = quantize_weights(w, engine.projection)
            call = compiled(lambda x, w, n=name: linear(x, w, n), x, ready)
            listed.append(Case("engine", name, "static, weights quantized", call))
    return listed


def _named(catalog: dict[str, Any], names: Collection[str]) -> list[tuple[str, Any]]:
    return [(name, row) for name, row in catalog.items() if name in names]


def time_calls(call: Callable[[], Any], calls: int) -> float:
    """Median milliseconds of `calls` calls."""
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def compare(
    run: Run, shape: str, listed: list[Case], dot: Callable[[], Any], rounds: int, seed: int
) -> list[dict]:
    """Time each case between two float32 products, in another order every round; medians over rounds."""
    rng = np.random.default_rng(seed)
    for case in listed:
        case.call()
    milliseconds, ratios = np.empty((2, rounds, len(listed)))
    for i in run.track(range(rounds), f"rounds, {shape}"):
        for j in rng.permutation(len(listed)):
            dot()
            before = time_calls(dot, 3)
            milliseconds[i, j] = time_calls(listed[j].call, 3)
            dot()
            ratios[i, j] = 2 * milliseconds[i, j] / (before + time_calls(dot, 3))
    low, median, high = np.quantile(ratios, [0.25, 0.5, 0.75], axis=0)
    return [
        {
            "shape": shape,
            "kind": case.kind,
            "name": case.name,
            "variant": case.variant,
            "ms": float(np.median(milliseconds[:, j])),
            "ratio": float(median[j]),
            "ratio_low": float(low[j]),
            "ratio_high": float(high[j]),
        }
        for j, case in enumerate(listed)
    ]


def run(run: Run) -> None:
    shapes, rounds = (SMOKE_SHAPES, 2) if run.smoke else (SHAPES, 25)
    names = LIMITS if run.smoke else {*ACCUMULATORS, *ENGINES}
    (seed,) = run.seeds([0])
    run.configure(shapes=shapes, rounds=rounds, limits=LIMITS)
    rows = []
    for shape, sizes in shapes.items():
        x, w = operands(sizes, seed)
        listed = cases(x, w, names)
        with run.phase(shape):
            rows += compare(run, shape, listed, compiled(lambda x, w: x @ w, x, w), rounds, seed)
    run.table("linear", rows)
    first = next(iter(shapes))
    for row in rows:
        limit = LIMITS.get(row["name"])
        if row["shape"] == first and row["variant"] == "static" and limit:
            run.say(f"{row['name']}: {row['ratio']:.2f} times a float32 product (at most {limit} wanted)")


EXPERIMENT = Experiment(
    name="bench_linear",
    question="What do emulated formats and orders of summation cost, in float32 products of the same shape?",
    decision_rule="Fast enough if, at 1024 x 256 x 1024 and known to the compiler, the fp8-e4m3 engine takes "
    f"at most {FP8_LIMIT} float32 products and partial sums of 32 rounded to BF16 at most {PARTIAL_LIMIT} "
    "(medians).",
    run=run,
    minutes=4.0,
    figures=("linear_throughput",),
)
