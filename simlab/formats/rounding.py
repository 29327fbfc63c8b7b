"""Rounding float32 arrays to a number format: one kernel for all formats, modes and overflow rules.

Formats and modes enter as numbers, so the same code serves traced and static ones: what is static folds away
in the compiler, what is traced becomes loop-invariant scalars. Everything that decides a bit is integer
arithmetic on the bits, or float32 arithmetic that is exact: compilers flush subnormals, contract to fused
multiply-add, and simplify a literal `(x + c) - c` away.
"""

from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from simlab.core.catalog import lookup
from simlab.core.pytree import Flag, Integer, Scalar, pytree
from simlab.formats.counter_hash import random_words
from simlab.formats.format import FLOAT32_MIN_EXPONENT, Format

SIGN = 0x80000000
INFINITY = 0x7F800000
QUIET_NAN = 0x7FC00000
ALL = 0xFFFFFFFF
SMALLEST_NORMAL = 0x00800000
MANTISSA_BITS = 23
EXPONENT_BIAS = 127


@pytree
class Rounding:
    """A deterministic rounding mode as numbers, which may be traced and stacked.

    A magnitude at fraction f in (0, 1) of the way between two neighbors goes to the larger one if
    f + carry > 1, and also if f + carry = 1 unless `ties_even` asks for an even last bit.
    `carry_positive` and `carry_negative` (float32) are 0 (truncate), 1/2 (nearest) or 1 (away from zero).
    """

    carry_positive: Scalar
    carry_negative: Scalar
    ties_even: Flag

    @staticmethod
    def declare(carry_positive: float, carry_negative: float, ties_even: bool = False) -> "Rounding":
        """Return a checked rounding mode; raises `ValueError` for other carries than those of IEEE 754."""
        carries = (carry_positive, carry_negative)
        if carries not in ((0, 0), (0.5, 0.5), (1, 1), (0, 1), (1, 0)):
            raise ValueError(f"carries {carries}; allowed: both 0, both 0.5, both 1, (0, 1), (1, 0)")
        if ties_even and carry_positive != 0.5:
            raise ValueError(f"ties_even needs both carries at 0.5, not {carries}")
        return Rounding(np.float32(carry_positive), np.float32(carry_negative), np.bool_(ties_even))


@pytree
class StochasticRounding:
    """Rounding up in magnitude with a probability equal to the fraction f; needs a key.

    With n the number of float32 fraction bits that the format drops, f is rounded to n bits (to even), which
    changes it only for subnormal results, and the magnitude goes up if 2^n f + r >= 2^n, with r the upper n
    bits of the element's random word. The expectation is exact for normal results, and off by at most
    2^-(n+1) of a quantum for subnormal ones.
    """


ROUNDINGS: dict[str, Rounding | StochasticRounding] = {
    "nearest_even": Rounding.declare(0.5, 0.5, ties_even=True),
    "nearest_away": Rounding.declare(0.5, 0.5),
    "toward_zero": Rounding.declare(0.0, 0.0),
    "up": Rounding.declare(1.0, 0.0),
    "down": Rounding.declare(0.0, 1.0),
    "stochastic": StochasticRounding(),
}

# "saturate": what is beyond the range, infinities too, becomes the last finite value; NaN stays NaN.
# "format": the format's own infinity and NaN, or saturation where it has none.
OVERFLOWS: dict[str, Flag] = {"saturate": np.bool_(True), "format": np.bool_(False)}


def round_to_format(
    x: Array,
    fmt: Format,
    rounding: Rounding | StochasticRounding | str,
    overflow: Flag | str = "saturate",
    key: Array | None = None,
) -> Array:
    """Round float32 `x` (any shape) to values of `fmt`; returns float32 of the same shape.

    `overflow` is a name or value of `OVERFLOWS`; all numbers in `fmt`, `rounding`, `overflow` may be traced.
    "saturate" takes infinities to the last finite value and keeps every NaN, even where the format has none,
    so that a divergence stays visible. "format" takes a NaN to `fmt.nan_value` and what overflows to
    `fmt.overflow_value`; modes that truncate do not overflow from finite numbers. Integers (two's complement,
    so -128 exists) saturate either way. Without mantissa bits, ties go away from zero: the implicit bit is
    odd. e8m0 takes zero and negative numbers to NaN, and what is below 2^-127 to 2^-127; to nearest even it
    takes all between 2^-127 and 2^-126 up, as ml_dtypes does. fp32 returns `x` itself.
    Raises `TypeError` for other input types, `ValueError` for unknown names or a missing key.
    Source: IEEE 754-2019 Sec. 4.3, 7.4; OCP OFP8 v1.0 Sec. 5; ml_dtypes astype.
    Deviation: "saturate" keeps NaN in formats without one, where ml_dtypes gives zero; integers saturate,
    where ml_dtypes and NumPy wrap.
    """
    if isinstance(rounding, str):
        rounding = lookup(ROUNDINGS, rounding, kind="rounding")
    if isinstance(overflow, str):
        overflow = lookup(OVERFLOWS, overflow, kind="overflow rule")
    x = jnp.asarray(x)
    if x.dtype != jnp.float32:
        raise TypeError(f"round_to_format takes float32, not {x.dtype}")
    if isinstance(rounding, StochasticRounding) and key is None:
        raise ValueError("stochastic rounding needs key=, a key of jax.random")
    if is_on_host(fmt, rounding, overflow):
        fmt = prepare_format(fmt, rounding, overflow)
    return _round(x, fmt, rounding, overflow, key)


class BitConstants(NamedTuple):
    """Bit constants of a format, a rounding mode and an overflow rule: uint32 scalars, see `_bit_constants`.

    They choose by arithmetic, because a traced scalar that selects between vectors tends to become a branch
    in the inner loop.
    """

    magnitude_mask: Array
    first: Array
    last: Array
    lowest: Array
    dropped: Array
    directed: Array
    away: Array
    halved: Array
    tie_bits: Array
    quantum: Array
    threshold: Array
    grown: Array
    vanished: Array
    top: Array
    bottom: Array
    above_top: Array
    below_bottom: Array
    special_mask: Array
    special_flip: Array


@pytree
class PreparedFormat(Format):
    """A format that knows the constants of one rounding mode and overflow rule, see `prepare_format`."""

    constants: BitConstants


def prepare_format(fmt: Format, rounding: Rounding | StochasticRounding, saturate: Flag) -> PreparedFormat:
    """Return `fmt` with its constants, for use with this mode and rule only.

    Rounding to it gives the same bits. Constants of numbers that are known are derived on the host. A program
    that prepares a traced format outside its loops computes them once, otherwise in every fused kernel.
    """
    if isinstance(fmt, PreparedFormat):
        return fmt
    numbers = {field.name: getattr(fmt, field.name) for field in fields(Format)}
    return PreparedFormat(**numbers, constants=_bit_constants(fmt, rounding, saturate))


@jax.jit
def _round(x: Array, fmt: Format, rounding, saturate: Flag, key: Array | None) -> Array:
    prepared = isinstance(fmt, PreparedFormat)
    bits, constants = _bits(x), fmt.constants if prepared else _bit_constants(fmt, rounding, saturate)
    magnitude = (bits & constants.magnitude_mask) - constants.first
    if isinstance(rounding, StochasticRounding):
        assert key is not None
        rounded = _round_by_chance(bits, constants, fmt, random_words(key, x.shape))
    else:
        rounded = _round_by_mode(bits, magnitude, constants)
    # Bits of positive numbers are ordered as signed integers, those of negative ones as unsigned.
    rounded = jnp.where(_signed(rounded) > _signed(constants.top), constants.above_top, rounded)
    rounded = jnp.where(rounded > constants.bottom, constants.below_bottom, rounded)
    special = bits & constants.special_mask ^ constants.special_flip
    return _float(jnp.where(magnitude > constants.last, special, rounded))


def _round_by_mode(bits: Array, magnitude: Array, constants: BitConstants) -> Array:
    """Round to a multiple of the quantum: what is added to the bits carries into those that are kept."""
    exponent = jnp.minimum(magnitude >> jnp.uint32(MANTISSA_BITS), constants.lowest)
    # `& 31` spares the compiler's guard against shifts by 32 and more.
    dropped = (constants.dropped - exponent) & jnp.uint32(31)
    kept = jnp.uint32(ALL) << dropped
    grows = lax.shift_right_arithmetic(bits & constants.directed, jnp.uint32(31)) ^ constants.away
    tie = (magnitude | constants.tie_bits) >> dropped & constants.halved
    carry = (~kept >> (constants.halved & jnp.uint32(31))) + tie & grows
    # Below the quantum there is no bit to carry into.
    is_grown = (magnitude & grows) > constants.threshold
    tiny = jnp.where(is_grown, constants.grown, constants.vanished) & (bits | jnp.uint32(SIGN - 1))
    return jnp.where(magnitude < constants.quantum, tiny, bits + carry & kept)


def _round_by_chance(bits: Array, constants: BitConstants, fmt: Format, words: Array) -> Array:
    """Round to a multiple of the quantum, away from zero with a probability equal to the fraction.

    Random bits below those that the format keeps carry into them as often as the fraction asks. Subnormals
    are lifted into the lowest binade of normal numbers for that, where they have the same quantum.
    """
    magnitude, lowest = bits & jnp.uint32(SIGN - 1), constants.lowest << jnp.uint32(MANTISSA_BITS)
    subnormal = magnitude < lowest
    lifted = jnp.where(subnormal, _bits(_float(magnitude) + _float(lowest)), magnitude)
    mantissa_bits = _word(fmt.mantissa_bits) & jnp.uint32(31)
    chance = (words >> jnp.uint32(9)) >> mantissa_bits
    carried = lifted + chance & (jnp.uint32(ALL) << (jnp.uint32(MANTISSA_BITS) - mantissa_bits))
    rounded = jnp.where(subnormal, _bits(_float(carried) - _float(lowest)), carried) | bits & jnp.uint32(SIGN)
    unwanted = jnp.where(fmt.negative_zero, jnp.uint32(0), jnp.uint32(SIGN))
    rounded = jnp.where(rounded == unwanted, jnp.uint32(0), rounded)
    # The smallest value of e8m0 lies among float32's subnormals, where chance takes nothing upward.
    smallest_below = jnp.where(jnp.signbit(fmt.min_finite), jnp.uint32(0), jnp.uint32(SMALLEST_NORMAL))
    return jnp.where(magnitude < smallest_below, _bits(fmt.min_finite), rounded)


def _bit_constants(fmt: Format, rounding: Rounding | StochasticRounding, saturate: Flag) -> BitConstants:
    # Chance may take any magnitude upward, too.
    mode = ROUNDINGS["nearest_away"] if isinstance(rounding, StochasticRounding) else rounding
    assert isinstance(mode, Rounding)
    xp = np if is_on_host(fmt, mode, saturate) else jnp
    # Words wrap round at 2^32.
    with np.errstate(over="ignore"):
        limits = _range_constants(xp, fmt, mode, saturate)
        return BitConstants(**limits, **_grid_constants(xp, fmt, mode, limits["first"]))


def is_on_host(*numbers: object) -> bool:
    """Return whether all numbers in these trees are Python's or NumPy's, known when a program is traced."""
    return not any(isinstance(leaf, Array) for leaf in jax.tree.leaves(numbers))


def _range_constants(xp: Any, fmt: Format, mode: Rounding, saturate: Flag) -> dict[str, Any]:
    word, has_sign, beyond = xp.uint32, xp.signbit(fmt.min_finite), _bits(fmt.overflow_value, xp)
    # A magnitude is bits & magnitude_mask - first, and special beyond `last`: without a sign bit, negative
    # numbers look larger than any NaN and share its fate; without a zero, it wraps round.
    first = xp.where(has_sign, word(0), word(1))
    stops, stays_nan = saturate | xp.isfinite(fmt.overflow_value), saturate | xp.isnan(fmt.nan_value)
    quiet = xp.where(xp.isnan(fmt.overflow_value) | ~has_sign, word(QUIET_NAN), word(0))
    zero = xp.where(fmt.negative_zero, word(SIGN), word(0))
    is_float32 = fmt.mantissa_bits == MANTISSA_BITS
    top = xp.where(is_float32, word(INFINITY), _bits(fmt.max_finite, xp))
    bottom = xp.where(is_float32, word(SIGN | INFINITY), _bits(fmt.min_finite, xp))
    bottom = xp.where(has_sign, bottom, word(ALL))
    return {
        "magnitude_mask": xp.where(has_sign, word(SIGN - 1), word(ALL)),
        "first": first,
        "last": xp.where(stops, word(INFINITY), word(INFINITY - 1)) - first,
        "special_mask": xp.where(stays_nan, ~quiet, zero),
        "special_flip": xp.where(stays_nan, quiet, _bits(fmt.nan_value, xp)),
        "top": top,
        "bottom": bottom,
        # A mode that does not grow stops at the last number; so does the rule that saturates.
        "above_top": xp.where(stops | (mode.carry_positive == 0), top, beyond),
        "below_bottom": xp.where(stops | (mode.carry_negative == 0), bottom, beyond | word(SIGN)),
        "vanished": xp.where(has_sign, zero, _bits(fmt.min_finite, xp)),
    }


def _grid_constants(xp: Any, fmt: Format, mode: Rounding, first: Any) -> dict[str, Any]:
    word, has_sign, mantissa_bits = xp.uint32, xp.signbit(fmt.min_finite), _word(fmt.mantissa_bits, xp)
    is_touched, nearest = fmt.mantissa_bits != MANTISSA_BITS, mode.carry_positive == 0.5
    # Below the biased exponent `lowest` (0 where float32 says that) the quantum no longer shrinks; `dropped`
    # less the exponent is the number of float32's last bits that the format lacks.
    shared = fmt.min_exponent <= FLOAT32_MIN_EXPONENT
    lowest = xp.where(shared, word(0), _word(fmt.min_exponent + EXPONENT_BIAS, xp))
    subnormal = word(2 * SMALLEST_NORMAL) >> (mantissa_bits & word(31))
    normal = (lowest - mantissa_bits) << word(MANTISSA_BITS)
    quantum = xp.where(shared, subnormal >> word(1), normal)
    half = xp.where(shared, subnormal >> word(2), normal - word(SMALLEST_NORMAL))
    # Magnitudes below the quantum grow to it beyond `threshold`; e8m0 has its smallest number there.
    before_half = xp.where(has_sign, half - word(1), word(SMALLEST_NORMAL * 3 // 4 - 1))
    smallest = xp.where(has_sign, word(0), _bits(fmt.min_finite, xp))
    threshold = xp.where(nearest, xp.where(mode.ties_even, half, before_half), smallest)
    directed = (mode.carry_positive != mode.carry_negative) & is_touched
    return {
        "lowest": lowest,
        "dropped": lowest + word(MANTISSA_BITS) - mantissa_bits,
        "quantum": quantum - first,
        "grown": quantum | word(SIGN),
        "threshold": threshold - first,
        "directed": xp.where(directed, word(SIGN), word(0)),
        "away": xp.where((mode.carry_positive > 0) & is_touched, word(ALL), word(0)),
        "halved": _word(nearest, xp),
        # The implicit bit is odd. All bits are set, so that the last is, where every tie grows.
        "tie_bits": xp.where(mode.ties_even, word(SMALLEST_NORMAL), word(ALL)),
    }


def _word(value: Integer | Flag, xp: Any = jnp) -> Array:
    return xp.asarray(value).astype(xp.uint32)


def _bits(value: Scalar, xp: Any = jnp) -> Array:
    return xp.asarray(value, xp.float32).view(xp.uint32)


def _float(bits: Array) -> Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def _signed(bits: Array) -> Array:
    return lax.bitcast_convert_type(bits, jnp.int32)
