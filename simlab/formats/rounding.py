"""Rounding float32 arrays to a number format: one kernel for all formats, modes and overflow rules.

Formats and modes enter as numbers, so the same code serves traced and known ones. Of a known format only
the steps remain that can change a bit. Everything that decides a bit is integer arithmetic on the bits, or
float32 arithmetic that is exact: compilers flush subnormals, contract to fused multiply-add, and simplify a
literal `(x + c) - c` away.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Shaped

from simlab.core.arrays import AnyArray
from simlab.core.catalog import lookup
from simlab.core.pytree import Flag
from simlab.formats.bit_constants import (
    INFINITY,
    MAGNITUDE,
    MANTISSA_BITS,
    SIGN,
    SMALLEST_NORMAL,
    BitConstants,
    BySign,
    Word,
    is_on_host,
    prepare_format,
)
from simlab.formats.counter_hash import random_words
from simlab.formats.format import Format
from simlab.formats.rounding_modes import OVERFLOWS, ROUNDINGS, Rounding, StochasticRounding

BINADE = 1 << MANTISSA_BITS
NEGATIVE_ZERO = SIGN - (1 << 32)


def round_to_format(
    x: Array,
    fmt: Format,
    rounding: Rounding | StochasticRounding | str,
    overflow: Flag | str = "saturate",
    key: Array | None = None,
) -> Float[Array, "..."]:
    """Round float32 `x` to values of `fmt`.

    "saturate" takes infinities to the last finite value and keeps every NaN, even where the format has none,
    so that a divergence stays visible. "format" takes a NaN to `fmt.nan_value` and what overflows to
    `fmt.overflow_value`; modes that truncate do not overflow from finite numbers. Integers (two's complement,
    so -128 exists) saturate either way. Without mantissa bits, ties go away from zero: the implicit bit is
    odd. e8m0 takes zero and negative numbers to NaN, and what is below 2^-127 to 2^-127; to nearest even it
    takes all between 2^-127 and 2^-126 up, as ml_dtypes does. fp32 returns `x` itself.

    Args:
        x: float32 of any shape.
        fmt: format; its numbers may be traced, as those of `rounding` and `overflow` may.
        rounding: name of `ROUNDINGS`, or a record.
        overflow: name or value of `OVERFLOWS`.
        key: of stochastic rounding.

    Returns:
        Float32 of the shape of `x`.

    Raises:
        TypeError: For input that is not float32.
        ValueError: For unknown names, or a missing key.

    Reference: IEEE 754-2019 Sec. 4.3, 7.4; OCP OFP8 v1.0 Sec. 5; ml_dtypes astype.
    Deviation: "saturate" keeps NaN in formats without one, where ml_dtypes gives zero; integers saturate,
        where ml_dtypes and NumPy wrap.
    """
    if isinstance(rounding, str):
        rounding = lookup(ROUNDINGS, rounding, kind="rounding")
    if isinstance(overflow, str):
        overflow = lookup(OVERFLOWS, overflow, kind="overflow rule")
    if isinstance(rounding, StochasticRounding) and key is None:
        raise ValueError("stochastic rounding needs key=, a key of jax.random")
    if is_on_host(fmt, rounding, overflow):
        fmt = prepare_format(fmt, rounding, overflow)
    return round_array(jnp.asarray(x), fmt, rounding, overflow, key)


@jax.jit
def round_array(
    x: Shaped[AnyArray, "*S"],
    fmt: Format,
    rounding: Rounding | StochasticRounding,
    saturate: Flag,
    key: Array | None = None,
) -> Float[Array, "*S"]:
    """Round as `round_to_format` does, from records alone; `saturate` is a value of `OVERFLOWS`.

    Inside of this function every number is traced, but the constants of a `KnownFormat`: prepare a format
    whose numbers are known before the call.
    """
    if x.dtype != jnp.float32:
        raise TypeError(f"round_to_format takes float32, not {x.dtype}")
    constants = prepare_format(fmt, rounding, saturate).constants
    bits = _bits(x)
    magnitude, is_negative = bits & MAGNITUDE, bits < constants.least_positive
    limit, beyond = (_by_sign(is_negative, ends) for ends in (constants.limit, constants.beyond))
    is_nonzero = None
    if isinstance(rounding, StochasticRounding):
        assert key is not None
        result = _round_by_chance(magnitude, constants, random_words(key, x.shape))
        is_nonzero = (magnitude > _by_sign(is_negative, constants.threshold)) & (result > 0)
    elif _is_known_nearest_even(constants):
        # Four times the limit still rounds to what is beyond it, and keeps the sums finite.
        reach = limit if constants.limit == constants.beyond else limit + 2 * BINADE
        result = _round_by_addition(jnp.minimum(magnitude, reach), constants)
        is_nonzero = None if constants.vanished == (0, NEGATIVE_ZERO) else result > 0
    else:
        result = _round_by_carry(magnitude, is_negative, constants)
        if not (_is_shared(constants) and constants.least_positive == 0):
            is_nonzero = magnitude > _by_sign(is_negative, constants.threshold)
    result = jnp.where(result > limit, beyond, result) | (bits & NEGATIVE_ZERO)
    if is_nonzero is not None:
        result = jnp.where(is_nonzero, result, _by_sign(is_negative, constants.vanished))
    special = bits & constants.special_mask ^ constants.special_flip
    return _float(jnp.where(magnitude > constants.last, special, result))


def _round_by_carry(magnitude: Array, is_negative: Array, constants: BitConstants) -> Array:
    """Round to a multiple of the quantum: what is added to the bits carries into those that are kept."""
    if _is_shared(constants):
        dropped = constants.least_dropped
    else:
        # Below the quantum there is no bit to carry into.
        magnitude = jnp.maximum(magnitude, constants.quantum)
        exponent = magnitude >> MANTISSA_BITS
        # `& 31` spares the compiler's guard against shifts by 32 and more.
        dropped = jnp.maximum(constants.dropped - exponent, constants.least_dropped) & 31
    kept_bits = jnp.int32(-1) << dropped
    if _is_known_truncation(constants):
        return magnitude & kept_bits
    shift = _by_sign(is_negative, jax.tree.map(lambda bits: bits & 31, constants.shift))
    tie = (magnitude | constants.tie_bits) >> dropped & constants.nearest
    return magnitude + (~kept_bits >> shift) + tie & kept_bits


def _round_by_addition(magnitude: Array, constants: BitConstants) -> Array:
    """Round to nearest even as float32 addition does, where float32 has enough numbers below the quantum.

    The last bit of one and a half times 2^23 quanta is one quantum. Its exponent depends on the data:
    `(x + c) - c` with a constant c would be folded away.
    """
    binade = jnp.maximum(magnitude & INFINITY, constants.lowest << MANTISSA_BITS)
    shifter = _float(binade + (constants.least_dropped * BINADE + BINADE // 2))
    return _bits((_float(magnitude) + shifter) - shifter)


def _round_by_chance(magnitude: Array, constants: BitConstants, words: Array) -> Array:
    """Round to a multiple of the quantum, away from zero with a probability equal to the fraction.

    Random bits below those that the format keeps carry into them as often as the fraction asks. Subnormals
    are lifted into the lowest binade of normal numbers for that, where they have the same quantum.
    """
    lowest, dropped = constants.lowest << MANTISSA_BITS, constants.least_dropped & 31
    subnormal = magnitude < lowest
    lifted = jnp.where(subnormal, _bits(_float(magnitude) + _float(lowest)), magnitude)
    words = lax.bitcast_convert_type(words >> jnp.uint32(9), jnp.int32)
    carried = lifted + (words >> (MANTISSA_BITS - dropped)) & (jnp.int32(-1) << dropped)
    return jnp.where(subnormal, _bits(_float(carried) - _float(lowest)), carried)


def _by_sign(is_negative: Array, pair: BySign) -> Word:
    """Return the value of the sign; one that is known to be equal for both needs no selection."""
    positive, negative = pair
    if isinstance(positive, int) and positive == negative:
        return positive
    return jnp.where(is_negative, negative, positive)


def _is_shared(constants: BitConstants) -> bool:
    """Return whether it is known that float32's subnormals have one quantum with the format's."""
    return isinstance(constants.lowest, int) and constants.lowest == 0


def _is_known_nearest_even(constants: BitConstants) -> bool:
    """Return whether it is known that float32 addition rounds as the mode does."""
    if not isinstance(constants.lowest, int) or _is_shared(constants):
        return False
    return (constants.nearest, constants.tie_bits) == (1, SMALLEST_NORMAL)


def _is_known_truncation(constants: BitConstants) -> bool:
    """Return whether it is known that nothing is ever added to the bits."""
    words = constants.shift, constants.nearest
    return is_on_host(words) and words == ((31, 31), 0)


def _float(bits: Word) -> Array:
    return lax.bitcast_convert_type(jnp.asarray(bits, jnp.int32), jnp.float32)


def _bits(x: Array) -> Array:
    return lax.bitcast_convert_type(x, jnp.int32)
