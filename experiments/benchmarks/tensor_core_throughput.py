"""Time of products on every tensor core, as a multiple of one float32 product of the same shape."""

import jax

from experiments.benchmarks.linear_throughput import Case, compare, compiled, operands
from simlab.core.experiment import Experiment, Run
from simlab.engines import ACCUMULATORS, Accumulator, matmul
from simlab.engines.kernel_order import Promoted, SplitK
from simlab.engines.tensor_core import TENSOR_CORES, MXTensorCore
from simlab.formats import quantize

SHAPES = {"wide": (512, 64, 256), "long": (256, 1024, 256), "decode": (16, 64, 192)}
SMOKE_SHAPES = {"toy": (16, 32, 48)}
LIMIT = 60.0


def accumulators() -> dict[str, tuple[str, Accumulator]]:
    """Return name -> (format of the operands, accumulator)."""
    listed: dict[str, tuple[str, Accumulator]] = {
        f"{architecture} {fmt}": (fmt, core)
        for architecture, cores in TENSOR_CORES.items()
        for fmt, core in cores.items()
        if fmt != "e5m2"
    }
    hopper = TENSOR_CORES["hopper"]["e4m3fn"]
    listed["hopper e4m3fn, promoted every 128"] = "e4m3fn", Promoted(hopper)
    listed["hopper e4m3fn, split-K 4"] = "e4m3fn", SplitK(hopper)
    listed["blackwell mxfp8"] = "e4m3fn", MXTensorCore(TENSOR_CORES["blackwell"]["e4m3fn"], 14)
    return listed | {name: ("bf16", ACCUMULATORS[name]) for name in ("exact", "float32-ordered")}


def cases(x: jax.Array, w: jax.Array, limit: int | None) -> list[Case]:
    """The first accumulators on operands of their format, their numbers known to the compiler or traced."""
    listed = []
    for name, (fmt, accumulator) in list(accumulators().items())[:limit]:
        a, b = quantize(x, fmt), quantize(w, fmt)
        static = compiled(lambda a, b, acc=accumulator: matmul(a, b, accumulator=acc), a, b)
        listed.append(Case("accumulator", name, "static", static))
        if jax.tree.leaves(accumulator):
            traced = compiled(lambda a, b, acc: matmul(a, b, accumulator=acc), a, b, accumulator)
            listed.append(Case("accumulator", name, "traced", traced))
    return listed


def run(run: Run) -> None:
    shapes, rounds = (SMOKE_SHAPES, 2) if run.smoke else (SHAPES, 15)
    (seed,) = run.seeds([0])
    run.configure(shapes=shapes, rounds=rounds, limit=LIMIT)
    rows = []
    for shape, sizes in shapes.items():
        x, w = operands(sizes, seed)
        listed = cases(x, w, 2 if run.smoke else None)
        with run.phase(shape):
            rows += compare(run, shape, listed, compiled(lambda x, w: x @ w, x, w), rounds, seed)
    run.table("throughput", rows)
    first = next(iter(shapes))
    worst = max((row for row in rows if row["shape"] == first), key=lambda row: row["ratio"])
    run.report(
        f"slowest: {worst['name']}, {worst['ratio']:.1f} float32 products (at most {LIMIT:.0f} wanted)"
    )


EXPERIMENT = Experiment(
    name="bench_tensor_cores",
    question="What do the sums of a tensor core cost, in float32 products of the same shape?",
    decision_rule=f"Fast enough if every adder takes at most {LIMIT:.0f} float32 products at 512 x 64 x 256 "
    "(medians).",
    run=run,
    minutes=4.0,
    figures=("tensor_core_throughput",),
)
