"""The arithmetic of scales: exact division, powers of two from exponent bits, one rule per scale format.

All of it equals the same formula in IEEE float32 arithmetic bit for bit, compiled or not. Plain `x / s` does
not: compilers turn it into `x * (1 / s)` when s is broadcast or constant, and `x / s / t` into `x / (s * t)`.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.formats.bit_constants import SIGN
from simlab.formats.catalog import FORMATS
from simlab.formats.format import Format
from simlab.formats.rounding import round_to_format

SMALLEST_NORMAL = np.float32(2.0**-126)
MANTISSA_BITS = 23
FRACTION_MASK = (1 << MANTISSA_BITS) - 1
EXPONENT_BIAS = 127


def divide(x: Float[AnyArray, "*#S"], s: Float[AnyArray, "*#S"]) -> Float[Array, "*S"]:
    """Return x / s rounded once, where an x below 2^-126 counts as a zero; s is a scalar or of x's rank.

    The divisor depends on x, so that no compiler sees a broadcast; an optimization barrier would hide it too,
    but not under vmap, which broadcasts behind the barrier. This needs an x that the compiler does not know:
    where x is a constant of the program, the quotient becomes a product with the reciprocal. What a quotient
    below 2^-126 becomes is left to the device: that takes a block whose numbers are 2^126 apart.
    """
    return _hide_from_simplifier(x) / jnp.where(jnp.abs(x) < SMALLEST_NORMAL, jnp.float32(jnp.inf), s)


@jax.custom_jvp
def _hide_from_simplifier(x: Float[AnyArray, "*S"]) -> Float[Array, "*S"]:
    """Return x after two changes of its sign, so that XLA does not see a quotient in it.

    XLA would divide a quotient `x / s` by t as `x / (s * t)`, which is rounded otherwise. LLVM, which has no
    such rule, removes both changes. They are of integers, hence a gradient of its own.
    """
    sign = jnp.int32(SIGN - (1 << 32))
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return lax.bitcast_convert_type(bits ^ sign ^ sign, jnp.float32)


@_hide_from_simplifier.defjvp
def _hide_from_simplifier_jvp(primals, tangents):
    return _hide_from_simplifier(*primals), tangents[0]


def multiply(x: Float[AnyArray, "*#S"], s: Float[AnyArray, "*#S"] | float) -> Float[Array, "*S"]:
    """Return x * s rounded once, where a product below 2^-126 counts as a zero.

    The factor inside `flush` also keeps a compiler from contracting the product with a later sum.
    """
    return flush(x * s)


def flush(x: Float[AnyArray, "*S"]) -> Float[Array, "*S"]:
    """Replace what is below 2^-126 in magnitude by a zero of the same sign."""
    return x * jnp.where(jnp.abs(x) < SMALLEST_NORMAL, jnp.float32(0), jnp.float32(1))


def largest_magnitude(x: Float[AnyArray, "*S"], axes: tuple[int, ...]) -> Float[Array, "..."]:
    """Return max |x| over `axes`, 0 of nothing, NaN where there is one.

    Magnitudes are ordered as their bits are, NaN last. An integer maximum, because `jnp.max` of a large
    float32 array loses NaN on CPU (jaxlib 0.10.2), and an own reduction cannot be divided over devices.
    """
    bits = lax.bitcast_convert_type(jnp.abs(x), jnp.int32)
    reduce, by_halves = (partial(function, axes=axes) for function in (_largest, _largest_by_halves))
    largest = lax.platform_dependent(bits, cpu=by_halves, default=reduce) if bits.size else reduce(bits)
    return lax.bitcast_convert_type(largest, jnp.float32)


def _largest(bits: Array, axes: tuple[int, ...]) -> Array:
    return jnp.max(bits, axis=axes, initial=0)


def _largest_by_halves(bits: Array, axes: tuple[int, ...]) -> Array:
    """Return the maximum over axes that have an element: that of both halves, until two numbers are left.

    The halves of an odd size overlap. XLA's CPU compiler makes vector instructions of this, but a scalar
    loop of a reduction. The last step is a reduction, which XLA does not compute at compile time: with a
    constant x, `divide` by the scale would become a product.
    """
    for axis in axes:
        while (size := bits.shape[axis]) > 2:
            half = -(-size // 2)
            lower, upper = (lax.slice_in_dim(bits, at, at + half, axis=axis) for at in (0, size - half))
            bits = jnp.maximum(lower, upper)
    return _largest(bits, axes)


def float32_scale(amax: Float[AnyArray, "*C"], fmt: Format, min_scale: float) -> Float[Array, "*C"]:
    """Return amax / max_finite, at least `min_scale` and at least 2^-126."""
    smallest = jnp.float32(max(min_scale, float(SMALLEST_NORMAL)))
    return jnp.maximum(divide(amax, max_finite(fmt)), smallest)


def e8m0_scale(amax: Float[AnyArray, "*C"], fmt: Format, rule: str) -> Float[Array, "*C"]:
    """Return the power of two that `rule` of `E8M0_RULES` chooses for each amax, within 2^-126 and 2^127."""
    exponent = E8M0_RULES[rule](amax, fmt)
    biased = jnp.clip(exponent + EXPONENT_BIAS, 1, 254)
    return lax.bitcast_convert_type(biased << MANTISSA_BITS, jnp.float32)


def two_level_scale(
    amax: Float[AnyArray, "*C"], target: Float[AnyArray, "*#C"], tensor_scale: Float[AnyArray, "*#C"]
) -> Float[Array, "*C"]:
    """Return tensor_scale times the E4M3 number nearest to amax / (target tensor_scale), at least 2^-9."""
    exact = divide(divide(amax, target), tensor_scale)
    level = round_to_format(exact, FORMATS["e4m3fn"], "nearest_even")
    return jnp.maximum(jnp.maximum(level, jnp.float32(2.0**-9)) * tensor_scale, SMALLEST_NORMAL)


def tensor_scale(
    amax: Float[AnyArray, "*C"], fmt: Format, largest_level: float = 448.0
) -> Float[Array, "..."]:
    """Return the upper level of two: the largest amax over `largest_level` max_finite, of `amax`'s rank."""
    largest = largest_magnitude(amax, tuple(range(amax.ndim))).reshape((1,) * amax.ndim)
    return jnp.maximum(divide(largest, jnp.float32(largest_level) * max_finite(fmt)), SMALLEST_NORMAL)


def pairwise_sum(x: Float[AnyArray, "*C N"]) -> Float[Array, "*C"]:
    """Sum the last axis in one order: halves of the next power of two are added until one is left."""
    size = 1 << (x.shape[-1] - 1).bit_length()
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])])
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def _floor_log2(x: Array) -> Array:
    """Return the exponent of a positive normal float32."""
    return (lax.bitcast_convert_type(x, jnp.int32) >> MANTISSA_BITS) - EXPONENT_BIAS


def _ceil_log2(x: Array) -> Array:
    return ((lax.bitcast_convert_type(x, jnp.int32) + FRACTION_MASK) >> MANTISSA_BITS) - EXPONENT_BIAS


def _floor_rule(amax: Array, fmt: Format) -> Array:
    return _floor_log2(amax) - _floor_log2(max_finite(fmt))


def _ceil_rule(amax: Array, fmt: Format) -> Array:
    return _ceil_log2(amax) - _floor_log2(max_finite(fmt))


def _rceil_rule(amax: Array, fmt: Format) -> Array:
    return _ceil_log2(divide(amax, max_finite(fmt)))


def _even_rule(amax: Array, fmt: Format) -> Array:
    top = _floor_log2(max_finite(fmt))
    # Where the largest values are subnormal (integers), they have fewer bits than the record says.
    mantissa_bits = jnp.minimum(fmt.mantissa_bits, top - fmt.min_exponent + fmt.mantissa_bits)
    half = (1 << MANTISSA_BITS) >> (mantissa_bits + 1)
    return ((lax.bitcast_convert_type(amax, jnp.int32) + half) >> MANTISSA_BITS) - EXPONENT_BIAS - top


E8M0_RULES: dict[str, Callable[[Array, Format], Array]] = {
    "floor": _floor_rule,
    "ceil": _ceil_rule,
    "rceil": _rceil_rule,
    "even": _even_rule,
}


def max_finite(fmt: Format) -> Float[Array, ""]:
    """Return the largest finite value of a format, float32."""
    return jnp.asarray(fmt.max_finite, jnp.float32)
