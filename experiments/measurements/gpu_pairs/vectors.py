"""Compare recorded outputs of tensor cores with the models of tensor cores."""

import jax.numpy as jnp
import numpy as np

from simlab.core.paths import checkout_root
from simlab.engines import matmul
from simlab.engines.tensor_core import TENSOR_CORES

FILE = checkout_root() / "tests" / "engines" / "goldens" / "tensor_cores.npz"


def compare() -> list[dict]:
    """Return, for each recorded product, how many outputs its own accumulator reproduces bit by bit.

    `nearest_other` is the share of outputs that the most similar other architecture reproduces.
    """
    with np.load(FILE) as file:
        recorded = dict(file)
    rows = []
    for name in sorted({key.rpartition("/")[0] for key in recorded}):
        architecture, fmt = name.split("/")[0].replace("e4m3", "e4m3fn").split("-")
        a, b, expected = (recorded[f"{name}/{x}"] for x in "abd")
        equal = {
            other: _equal(matmul(jnp.asarray(a), jnp.asarray(b), accumulator=other, format=fmt), expected)
            for other, cores in TENSOR_CORES.items()
            if fmt in cores
        }
        own = equal.pop(architecture)
        rows.append(
            {
                "vector": name,
                "outputs": expected.size,
                "equal": own,
                "nearest_other": max(equal.values(), default=0) / expected.size,
                "error": _relative_error(a, b, expected),
            }
        )
    return rows


def _equal(actual, expected: np.ndarray) -> int:
    return int((np.asarray(actual).view(np.int32) == expected.view(np.int32)).sum())


def _relative_error(a: np.ndarray, b: np.ndarray, recorded: np.ndarray) -> float:
    """Root mean square of the recorded outputs' error over that of the exact sums."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return float(np.sqrt(np.mean((recorded - exact) ** 2) / np.mean(exact**2)))
