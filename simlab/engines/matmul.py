"""The matrix product of operands that are already on their grids."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from simlab.core.catalog import lookup
from simlab.engines.accumulate import ACCUMULATORS, Accumulator, ExactSum, float32_dot
from simlab.engines.exact_sum import slices_for
from simlab.formats import FORMATS, Format


def matmul(
    a: Array, b: Array, *, accumulator: str | Accumulator = "float32", format: str | Format | None = None
) -> Array:
    """Multiply float32 a [..., M, K] (or [K]) by b [K, N] with the sums that `accumulator` says.

    Returns float32 [..., M, N] (or [N]). Nothing is rounded before the products. `accumulator` is a name of
    `ACCUMULATORS` or a record; `format`, a name of `FORMATS` or a record of plain numbers, tells it the grid
    of the operands: `exact` takes as many slices as make every value of it exact. The gradient is that of
    the float32 product, whatever the accumulator.
    Raises `ValueError` for unknown names and for shapes that do not match, `TypeError` for other types.
    """
    if isinstance(accumulator, str):
        accumulator = lookup(ACCUMULATORS, accumulator, "accumulator")
    if isinstance(format, str):
        format = lookup(FORMATS, format, "format")
    if isinstance(accumulator, ExactSum) and format is not None:
        accumulator = replace(accumulator, slices=slices_for(format))
    check_operands(a, b)
    rows = a.reshape(-1, a.shape[-1])
    return product(rows, b, accumulator).reshape(*a.shape[:-1], b.shape[-1])


@jax.custom_jvp
@jax.jit
def product(a: Array, b: Array, accumulator: Accumulator) -> Array:
    """Multiply a [M, K] by b [K, N]; to its derivatives it is the float32 product."""
    return accumulator.dot(a, b)


@product.defjvp
def _product_jvp(primals, tangents):
    a, b, accumulator = primals
    a_dot, b_dot, _ = tangents
    return product(a, b, accumulator), float32_dot(a_dot, b) + float32_dot(a, b_dot)


def check_operands(a: Array, b: Array) -> None:
    """Raise unless a is float32 [..., K] and b float32 [K, N]."""
    for name, x in (("a", a), ("b", b)):
        if x.dtype != jnp.float32:
            raise TypeError(f"matmul takes float32, but {name} is {x.dtype}")
    if a.ndim < 1 or b.ndim != 2 or a.shape[-1] != b.shape[0]:
        raise ValueError(f"cannot multiply {a.shape} by {b.shape}; allowed: [..., K] by [K, N]")
