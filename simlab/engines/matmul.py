"""The matrix product of operands that are already rounded to their formats."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.core.catalog import lookup
from simlab.engines.accumulate import ACCUMULATORS, Accumulator, ExactSum, float32_dot
from simlab.engines.exact_sum import slices_for
from simlab.engines.tensor_core import TENSOR_CORES, TensorCore, find_tensor_core
from simlab.formats import FORMATS, Format, quantize


def matmul(
    a: Float[AnyArray, "*M K"],
    b: Float[AnyArray, "K N"],
    *,
    accumulator: str | Accumulator = "float32",
    format: str | Format | None = None,
) -> Float[Array, "*M N"]:
    """Multiply a by b with the sums of an accumulator. Operands are not rounded first.

    The gradient is that of the float32 product for every accumulator.

    Args:
        a: float32 [..., M, K], or [K].
        b: float32 [K, N].
        accumulator: a name of `ACCUMULATORS`, an architecture of `TENSOR_CORES`, or a record.
        format: format of the operands, a name of `FORMATS` or a record of plain numbers. `exact` then uses
            as many slices as the format needs; an architecture uses its accumulator for the format.

    Returns:
        Float32 [..., M, N], or [N].

    Raises:
        TypeError: for operands that are not float32.
        ValueError: for unknown names, a format that an architecture lacks, operands of a tensor core that are
            off its grid (not checked for tracers), and shapes that do not match.

    Example:
        >>> a, b = jnp.array([2.0**24, 1.0, 1.0]), jnp.ones((3, 1))
        >>> matmul(a, b, accumulator="float32-ordered").tolist()
        [16777216.0]
        >>> matmul(a, b, accumulator="exact").tolist()
        [16777218.0]
    """
    if isinstance(format, str):
        format = lookup(FORMATS, format, "format")
    check_operands(a, b)
    if isinstance(accumulator, str):
        accumulator = _resolve_accumulator(accumulator, format)
    if isinstance(accumulator, ExactSum) and format is not None:
        accumulator = replace(accumulator, slices=slices_for(format))
    if isinstance(accumulator, TensorCore) and format is not None:
        check_grid(a, b, format)
    rows = a.reshape(-1, a.shape[-1])
    return product(rows, b, accumulator).reshape(*a.shape[:-1], b.shape[-1])


def _resolve_accumulator(name: str, fmt: Format | None) -> Accumulator:
    lookup(ACCUMULATORS | TENSOR_CORES, name, "accumulator")
    return find_tensor_core(name, fmt) if name in TENSOR_CORES else ACCUMULATORS[name]


@jax.custom_jvp
@jax.jit
def product(
    a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"], accumulator: Accumulator
) -> Float[Array, "M N"]:
    """Multiply a [M, K] by b [K, N] with an accumulator; derivatives are those of the float32 product."""
    return accumulator.dot(a, b)


@product.defjvp
def _product_jvp(primals, tangents):
    a, b, accumulator = primals
    a_dot, b_dot, _ = tangents
    return product(a, b, accumulator), float32_dot(a_dot, b) + float32_dot(a, b_dot)


def check_operands(a: Array, b: Array) -> None:
    """Check that a is float32 [..., K] and b float32 [K, N].

    Raises:
        TypeError: If a or b is not float32.
        ValueError: If the shapes do not match.
    """
    for name, x in (("a", a), ("b", b)):
        if x.dtype != jnp.float32:
            raise TypeError(f"matmul takes float32, but {name} is {x.dtype}")
    if a.ndim < 1 or b.ndim != 2 or a.shape[-1] != b.shape[0]:
        raise ValueError(f"cannot multiply {a.shape} by {b.shape}; allowed: [..., K] by [K, N]")


def check_grid(a: Array, b: Array, fmt: Format) -> None:
    """Check that a and b hold only numbers of the format, infinities and NaN included. Skip tracers.

    Args:
        a: float32 of any shape.
        b: float32 of any shape.
        fmt: the format.

    Raises:
        ValueError: If an operand is off the grid; the message gives one of its values.
    """
    for name, x in (("a", a), ("b", b)):
        if isinstance(x, Tracer):
            continue
        with jax.ensure_compile_time_eval():
            off = np.asarray(_off_grid(x, fmt))
        if off.any():
            raise ValueError(
                f"{name} holds {np.asarray(x)[off][0]}, which is not on the grid of the format; "
                "allowed: numbers of the format, as quantize gives them"
            )


@jax.jit
def _off_grid(x: Array, fmt: Format) -> Array:
    """Return where x differs in a bit from its nearest number of the format."""
    rounded = quantize(x, fmt, overflow="format")
    # By bits: float32 arithmetic takes its subnormals for zeros.
    differs = lax.bitcast_convert_type(x, jnp.int32) != lax.bitcast_convert_type(rounded, jnp.int32)
    return differs & ~jnp.isnan(x)
