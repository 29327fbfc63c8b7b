"""Measure the time of emulated matrix products, as a multiple of a float32 product of the same shape."""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.timing import Call, compile_call, interleave, median_seconds
from simlab.engines import ACCUMULATORS, ENGINES, Accumulator, Engine, linear, matmul, quantize_operand
from simlab.engines.kernel_order import Promoted, SplitK
from simlab.engines.tensor_core import TENSOR_CORES, MXTensorCore
from simlab.formats import quantize
from simlab.studies.experiment import Experiment, ExperimentContext

Shapes = Mapping[str, tuple[int, int, int]]
LINEAR_SHAPES: Shapes = {"wide": (1024, 256, 1024), "toy": (128, 64, 192)}
CORE_SHAPES: Shapes = {"wide": (512, 64, 256), "long": (256, 1024, 256), "decode": (16, 64, 192)}
SMOKE_SHAPES: Shapes = {"toy": (16, 32, 48)}
Cases = dict[tuple[str, str, str], Call]
"""Timed calls by kind, name and variant; the variant states which parts are compile-time constants."""
LIMITS = {"fp8-e4m3": 1.2, "bf16-partial-32": 2.2}
CORE_LIMIT = 60.0


def operands(shape: tuple[int, int, int], seed: int) -> tuple[jax.Array, jax.Array]:
    """Return normal activations [M, K] and weights [K, N]."""
    rng = np.random.default_rng(seed)
    rows, terms, columns = shape
    x, w = rng.standard_normal((rows, terms)), rng.standard_normal((terms, columns)) * terms**-0.5
    return jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32)


def accumulator_cases(x: jax.Array, w: jax.Array, named: Mapping[str, tuple[str, Accumulator]]) -> Cases:
    """Return accumulators, each on operands of its format, static and traced."""
    cases: Cases = {}
    for name, (fmt, accumulator) in named.items():
        a, b = quantize(x, fmt), quantize(w, fmt)
        static = compile_call(lambda a, b, acc=accumulator: matmul(a, b, accumulator=acc), a, b)
        cases["accumulator", name, "static"] = static
        if jax.tree.leaves(accumulator):
            traced = compile_call(lambda a, b, acc: matmul(a, b, accumulator=acc), a, b, accumulator)
            cases["accumulator", name, "traced"] = traced
    return cases


def engine_cases(x: jax.Array, w: jax.Array, named: Mapping[str, Engine]) -> Cases:
    """Return engines on float32 operands: static, traced, and with weights quantized before."""
    cases: Cases = {}
    for name, engine in named.items():
        static = partial(compile_call, lambda x, w, n=name: linear(x, w, n), x)
        cases["engine", name, "static"] = static(w)
        if jax.tree.leaves(engine):
            cases["engine", name, "traced"] = compile_call(linear, x, w, engine)
            ready = quantize_operand(w, engine.projection.weights)
            cases["engine", name, "static, weights quantized"] = static(ready)
    return cases


def catalog_cases(x: jax.Array, w: jax.Array, smoke: bool) -> Cases:
    """Return every accumulator on BF16 operands and every engine; in smoke mode those with a limit."""
    on_bf16 = {name: ("bf16", row) for name, row in ACCUMULATORS.items() if not smoke or name in LIMITS}
    engines = {name: row for name, row in ENGINES.items() if not smoke or name in LIMITS}
    return accumulator_cases(x, w, on_bf16) | engine_cases(x, w, engines)


def tensor_core_cases(x: jax.Array, w: jax.Array, smoke: bool) -> Cases:
    """Return every tensor core on operands of its format; in smoke mode two."""
    named: dict[str, tuple[str, Accumulator]] = {
        f"{architecture} {fmt}": (fmt, core)
        for architecture, cores in TENSOR_CORES.items()
        for fmt, core in cores.items()
        if fmt != "e5m2"
    }
    hopper = TENSOR_CORES["hopper"]["e4m3fn"]
    named["hopper e4m3fn, promoted every 128"] = "e4m3fn", Promoted(hopper)
    named["hopper e4m3fn, split-K 4"] = "e4m3fn", SplitK(hopper)
    named["blackwell mxfp8"] = "e4m3fn", MXTensorCore(TENSOR_CORES["blackwell"]["e4m3fn"], 14)
    named |= {name: ("bf16", ACCUMULATORS[name]) for name in ("exact", "float32-ordered")}
    return accumulator_cases(x, w, dict(list(named.items())[: 2 if smoke else None]))


def compare(
    run: ExperimentContext, shape: str, cases: Cases, dot: Call, rounds: int, seed: int
) -> list[dict]:
    """Time each case between two float32 products; return medians and quartiles over rounds."""

    def measure(call: Call) -> tuple[float, float]:
        dot()
        before, seconds = median_seconds(dot, 3), median_seconds(call, 3)
        dot()
        return 1e3 * seconds, 2 * seconds / (before + median_seconds(dot, 3))

    values = interleave(run, list(cases.values()), measure, rounds, seed, f"rounds, {shape}")
    low, ratio, high = np.quantile(values[..., 1], [0.25, 0.5, 0.75], axis=0)
    ms = np.median(values[..., 0], axis=0)
    return [
        {"shape": shape, "kind": kind, "name": name, "variant": variant, "ms": ms[i]}
        | {"ratio": ratio[i], "ratio_low": low[i], "ratio_high": high[i]}
        for i, (kind, name, variant) in enumerate(cases)
    ]


def measure_products(
    run: ExperimentContext,
    table: str,
    list_cases: Callable[[jax.Array, jax.Array, bool], Cases],
    shapes: Shapes,
    rounds: int,
    limits: float | Mapping[str, float],
) -> None:
    """Compare the cases at every shape and write the table."""
    shapes, rounds = (SMOKE_SHAPES, 2) if run.smoke else (shapes, rounds)
    (seed,) = run.seeds([0])
    limited = {"limit" if isinstance(limits, float) else "limits": limits}
    run.configure(shapes=dict(shapes), rounds=rounds, **limited)
    rows = []
    for shape, sizes in shapes.items():
        x, w = operands(sizes, seed)
        cases = list_cases(x, w, run.smoke)
        with run.phase(shape):
            rows += compare(run, shape, cases, compile_call(lambda x, w: x @ w, x, w), rounds, seed)
    run.table(table, rows)
    first = next(iter(shapes))
    for row in rows:
        limit = limits.get(row["name"]) if isinstance(limits, Mapping) else limits
        if row["shape"] == first and row["variant"] == "static" and limit:
            run.report(f"{row['name']}: {row['ratio']:.2f} float32 products (limit {limit})")


EXPERIMENT = Experiment(
    name="bench_linear",
    question="What do emulated formats and orders of summation cost, in float32 products of the same shape?",
    decision_rule="Fast enough if, at 1024 x 256 x 1024 and known to the compiler, the fp8-e4m3 engine takes "
    f"at most {LIMITS['fp8-e4m3']} float32 products and partial sums of 32 rounded to BF16 at most "
    f"{LIMITS['bf16-partial-32']} (medians).",
    run=lambda run: measure_products(run, "linear", catalog_cases, LINEAR_SHAPES, 25, LIMITS),
    minutes=4.0,
)
TENSOR_CORES_EXPERIMENT = Experiment(
    name="bench_tensor_cores",
    question="What do the sums of a tensor core cost, in float32 products of the same shape?",
    decision_rule=f"Fast enough if every accumulator takes at most {CORE_LIMIT:.0f} float32 products at "
    "512 x 64 x 256 (medians).",
    run=lambda run: measure_products(run, "throughput", tensor_core_cases, CORE_SHAPES, 15, CORE_LIMIT),
    minutes=4.0,
)
