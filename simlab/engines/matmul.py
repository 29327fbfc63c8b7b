"""The matrix product of operands that are already on their grids."""

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
    """Multiply a by b with the sums that an accumulator makes; nothing is rounded before the products.

    The gradient is that of the float32 product, whatever the accumulator.

    Args:
        a: float32 [..., M, K], or [K].
        b: float32 [K, N].
        accumulator: a name of `ACCUMULATORS`, an architecture of `TENSOR_CORES`, or a record.
        format: a name of `FORMATS` or a record of plain numbers: the grid of the operands. `exact` takes as
            many slices as make every value of it exact, an architecture the accumulator that it has for it.

    Returns:
        Float32 [..., M, N], or [N].

    Raises:
        TypeError: for operands that are not float32.
        ValueError: for unknown names, a format that an architecture lacks, operands of a tensor core that are
            off its grid (if they are no tracers), and shapes that do not match.
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
    """Multiply a [M, K] by b [K, N]; to its derivatives it is the float32 product."""
    return accumulator.dot(a, b)


@product.defjvp
def _product_jvp(primals, tangents):
    a, b, accumulator = primals
    a_dot, b_dot, _ = tangents
    return product(a, b, accumulator), float32_dot(a_dot, b) + float32_dot(a, b_dot)


def check_operands(a: Array, b: Array) -> None:
    """Check that a is float32 [..., K] and b float32 [K, N].

    Raises:
        TypeError: For another type.
        ValueError: For shapes that do not match.
    """
    for name, x in (("a", a), ("b", b)):
        if x.dtype != jnp.float32:
            raise TypeError(f"matmul takes float32, but {name} is {x.dtype}")
    if a.ndim < 1 or b.ndim != 2 or a.shape[-1] != b.shape[0]:
        raise ValueError(f"cannot multiply {a.shape} by {b.shape}; allowed: [..., K] by [K, N]")


def check_grid(a: Array, b: Array, fmt: Format) -> None:
    """Check that a and b hold numbers of the format, its infinities and NaN included; tracers pass unseen.

    Raises:
        ValueError: For an operand that is off the grid, with one of its values.
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
