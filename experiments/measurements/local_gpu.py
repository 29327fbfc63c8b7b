"""Compare products on the local GPU bit by bit with the models of tensor cores, in every known order."""

import subprocess
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array, lax

from simlab.engines import ACCUMULATORS, Accumulator, matmul
from simlab.engines.kernel_order import Promoted, SplitK
from simlab.engines.tensor_core import TENSOR_CORES
from simlab.formats import quantize
from simlab.studies.experiment import Experiment, ExperimentContext

DTYPES = {"bf16": jnp.bfloat16, "fp16": jnp.float16, "e4m3fn": jnp.float8_e4m3fn}
SHAPES = ((64, 64, 64), (128, 512, 128), (256, 4096, 256))
SMOKE_SHAPES = ((16, 64, 16),)
EXPONENT_RANGES = (0.0, 3.0)
PROMOTIONS, SPLITS = (32, 64, 128), (2, 4)
STAND_IN = "hopper"

Product = Callable[[Array, Array, str], Array]


def native(a: Array, b: Array, fmt: str) -> Array:
    """Multiply operands of a format with the kernel of the device, into float32."""
    return lax.dot(a.astype(DTYPES[fmt]), b.astype(DTYPES[fmt]), preferred_element_type=jnp.float32)


def stand_in(a: Array, b: Array, fmt: str) -> Array:
    """Multiply as the model of one GPU does, without a GPU."""
    return matmul(a, b, accumulator=STAND_IN, format=fmt)


def candidates(fmt: str) -> dict[str, Accumulator]:
    """Return the possible computations of a kernel on operands of a format, by name."""
    listed = {name: ACCUMULATORS[name] for name in ("float32", "exact")}
    for architecture, cores in TENSOR_CORES.items():
        # A compiler without a kernel for FP8 multiplies in FP16, which holds all of its numbers.
        for own in dict.fromkeys((fmt, fmt if fmt == "bf16" else "fp16")):
            if own in cores:
                name, core = f"{architecture} {own}", cores[own]
                listed[name] = core
                listed |= {f"{name}, promoted every {n}": Promoted(core, n) for n in PROMOTIONS}
                listed |= {f"{name}, split-K {n}": SplitK(core, n) for n in SPLITS}
    return listed


def compare(
    product: Product, shape: tuple[int, int, int], fmt: str, exponent_range: float, seed: int
) -> list[dict]:
    """Return for every candidate the fraction of bitwise equal outputs, and the largest error in ulp."""
    rows, terms, columns = shape
    rng = np.random.default_rng(seed)

    def draw(*size: int) -> Array:
        x = rng.standard_normal(size) * 2.0 ** rng.uniform(-exponent_range, exponent_range, size)
        return quantize(jnp.asarray(x, jnp.float32), fmt)

    a, b = draw(rows, terms), draw(terms, columns)
    measured = np.asarray(product(a, b, fmt))
    case = {"format": fmt, "rows": rows, "terms": terms, "columns": columns, "spread": exponent_range}
    compared = []
    for name, accumulator in candidates(fmt).items():
        apart = steps_apart(measured, np.asarray(matmul(a, b, accumulator=accumulator)))
        equal = float(np.mean(apart == 0))
        compared.append(case | {"candidate": name, "equal": equal, "worst_ulp": int(apart.max())})
    return compared


def steps_apart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return how many float32 numbers lie between two finite ones, as int64; -0 is 0."""
    ordered = [np.where((i := z.view(np.int32).astype(np.int64)) < 0, -(i & 0x7FFFFFFF), i) for z in (x, y)]
    return np.abs(ordered[0] - ordered[1])


def run(run: ExperimentContext) -> None:
    if not run.smoke and jax.default_backend() != "gpu":
        raise SystemExit(f"real_card needs a GPU; jax sees none here, only: {jax.default_backend()}")
    product, shapes, formats = (stand_in, SMOKE_SHAPES, ("bf16",)) if run.smoke else (native, SHAPES, DTYPES)
    (seed,) = run.seeds([0])
    run.configure(card=f"model of {STAND_IN}" if run.smoke else jax.devices()[0].device_kind)
    run.configure(driver=driver(), library=jax.devices()[0].client.platform_version, shapes=shapes)
    rows = []
    for fmt in formats:
        for shape in run.track(shapes, fmt):
            for exponent_range in EXPONENT_RANGES:
                rows += compare(product, shape, fmt, exponent_range, seed)
    run.table("agreement", rows)
    for fmt in formats:
        run.report(best(fmt, rows))


def best(fmt: str, rows: list[dict]) -> str:
    """Return the candidate with the highest agreement over all products of a format, and the agreement."""
    table: Any = pd.DataFrame(rows)
    by_candidate = table[table["format"] == fmt].groupby("candidate", sort=False)
    shares, worst = by_candidate["equal"].mean(), by_candidate["worst_ulp"].max()
    name = shares.idxmax()
    return f"{fmt}: {name}, {shares[name]:.2%} of the outputs bitwise equal, worst {worst[name]} ulp"


def driver() -> str:
    """Return the version of the driver, or that no driver is found."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    except (OSError, subprocess.CalledProcessError):
        return "none"


EXPERIMENT = Experiment(
    name="real_card",
    question="Does the tensor-core model reproduce the sums of the local GPU, and in which order?",
    decision_rule=(
        "A model is right for a format if one of its orders gives every output of every shape bit by bit; a "
        "GPU that no candidate reproduces is reported. In smoke mode a model replaces the GPU."
    ),
    run=run,
    minutes=3.0,
)
