"""Rounding float32 arrays to a number format: one kernel for all formats, modes and overflow rules.

Formats and modes enter as numbers, so the same code serves traced and static ones: what is static folds away
in the compiler, what is traced becomes loop-invariant scalars. Everything that decides a bit is integer
arithmetic on the bits, or float32 arithmetic that is exact or rounds once on purpose: compilers flush
subnormals, contract to fused multiply-add, and simplify a literal `(x + c) - c` away.
"""

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
ONE = 0x3F800000
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
    return _round(x, fmt, rounding, overflow, key)


# The numbers of a format become masks and limits, which choose by arithmetic: a traced scalar that selects
# between vectors tends to become a branch in the inner loop.


@jax.jit
def _round(x: Array, fmt: Format, rounding, saturate: Flag, key: Array | None) -> Array:
    bits = _bits(x)
    has_sign = jnp.signbit(fmt.min_finite)
    # Without a sign bit, negative numbers look larger than any NaN, and share its fate.
    magnitude = bits & jnp.where(has_sign, jnp.uint32(SIGN - 1), jnp.uint32(ALL))
    stops = _stops_at_limit(fmt, rounding, saturate)
    limits = _limits(fmt)
    reached = _clip(bits, *_reach(fmt, limits, stops))

    if isinstance(rounding, StochasticRounding):
        assert key is not None
        rounded = _round_by_chance(reached, fmt, random_words(key, x.shape))
    else:
        rounded = _round_by_mode(reached, fmt, rounding)
    smallest_below = jnp.where(has_sign, jnp.uint32(0), _smallest_bound(rounding))
    rounded = jnp.where(magnitude < smallest_below, _bits(fmt.min_finite), rounded)
    rounded = _overflow(rounded, limits, fmt, stops)
    return lax.bitcast_convert_type(_replace_special(rounded, bits, magnitude, fmt, saturate), jnp.float32)


def _round_by_mode(numbers: Array, fmt: Format, mode: Rounding) -> Array:
    """Round to a multiple of the quantum: to nearest even, then by one more quantum if the mode asks."""
    # float32 arithmetic flushes float32's subnormals. Formats that share them are rounded in [1, 2) instead,
    # where the fraction bits of a subnormal look like any others, and get their exponent back.
    shared = _shares_subnormals(fmt)
    kept = jnp.where(shared, jnp.uint32(ALL - INFINITY), jnp.uint32(ALL))
    bits = numbers & kept | jnp.where(shared, jnp.uint32(ONE), jnp.uint32(0))
    binade = jnp.maximum(bits & jnp.uint32(INFINITY), _lowest_binade(fmt))
    # Directed modes tell zero from magnitudes that float32 arithmetic flushes to it: these are lifted.
    directed = (mode.carry_positive == 1) | (mode.carry_negative == 1)
    quarter = _bits_of_power(jnp.maximum(fmt.min_exponent - fmt.mantissa_bits - 2, FLOAT32_MIN_EXPONENT))
    sign, one = bits & jnp.uint32(SIGN), jnp.uint32(1)
    tiny = (bits & jnp.uint32(SIGN - 1)) - one < jnp.where(directed, quarter, one) - one
    value = _float(jnp.where(tiny, quarter | sign, bits))

    # The last bit of one and a half times 2^23 quanta, plus or minus the value, is one quantum. Its exponent
    # comes from the data: `(x + c) - c` with a constant c would be folded away. 23 bits stay as they are.
    fraction_bits = _fraction_bits(fmt)
    offset = jnp.uint32(23 << 23 | 1 << 22) - fraction_bits
    shifter = _float(binade + jnp.where(fmt.mantissa_bits == 23, jnp.uint32(2**32 - ONE), offset))
    nearest = (value + shifter) - shifter

    # At most one step remains, upward in value or in magnitude, or downward: turned round, all are one test.
    symmetric = mode.carry_positive == mode.carry_negative
    turned = bits & jnp.where(symmetric, jnp.uint32(SIGN), jnp.uint32(0))
    turned = turned ^ jnp.where(mode.carry_positive == 0, jnp.uint32(SIGN), jnp.uint32(0))
    before_tie = jnp.where(mode.ties_even, jnp.float32(jnp.inf), jnp.float32(0.5 - 2**-25))
    last_kept = jnp.where(mode.carry_positive == 0.5, before_tie, jnp.float32(0))
    rest = (value - nearest) * _float(jnp.uint32(2 * ONE) + fraction_bits - binade)
    step = _float((binade - fraction_bits) ^ turned)
    rounded = jnp.where(_float(_bits(rest) ^ turned) > last_kept, nearest + step, nearest)
    # Zero has lost its sign on the way.
    zero_sign = numbers & jnp.where(fmt.negative_zero, jnp.uint32(SIGN), jnp.uint32(0))
    return _bits(rounded) + (numbers - bits) | zero_sign


def _round_by_chance(bits: Array, fmt: Format, words: Array) -> Array:
    """Round to a multiple of the quantum, away from zero with a probability equal to the fraction.

    Random bits below those that the format keeps carry into them as often as the fraction asks. Subnormals
    are lifted into the lowest binade of normal numbers for that, where they have the same quantum.
    """
    magnitude, lowest = bits & jnp.uint32(SIGN - 1), _lowest_binade(fmt)
    subnormal = magnitude < lowest
    lifted = jnp.where(subnormal, _bits(_float(magnitude) + _float(lowest)), magnitude)
    # `& 31` spares the compiler's guard against shifts by 32 and more.
    mantissa_bits = jnp.asarray(fmt.mantissa_bits, jnp.int32).astype(jnp.uint32) & jnp.uint32(31)
    chance = (words >> jnp.uint32(9)) >> mantissa_bits
    carried = lifted + chance & (jnp.uint32(ALL) << (jnp.uint32(23) - mantissa_bits))
    rounded = jnp.where(subnormal, _bits(_float(carried) - _float(lowest)), carried) | bits & jnp.uint32(SIGN)
    unwanted = jnp.where(fmt.negative_zero, jnp.uint32(0), jnp.uint32(SIGN))
    return jnp.where(rounded == unwanted, jnp.uint32(0), rounded)


def _smallest_bound(rounding) -> Array:
    """Magnitude bits below which e8m0 gives its smallest value, 2^-127.

    It is the only value among float32's subnormals. ml_dtypes takes all above it to 2^-126, chance none.
    """
    if isinstance(rounding, StochasticRounding):
        return jnp.uint32(0x00800000)
    nearest = jnp.where(rounding.ties_even, jnp.uint32(0x00400001), jnp.uint32(0x00600000))
    truncated = jnp.where(rounding.carry_positive == 0, jnp.uint32(0x00800000), nearest)
    return jnp.where(rounding.carry_positive == 1, jnp.uint32(0x00400001), truncated)


def _stops_at_limit(fmt: Format, rounding, saturate: Flag) -> tuple[Array, Array]:
    """For positive and negative numbers: whether those beyond the range become the last one in it."""
    stops = saturate | jnp.isfinite(fmt.overflow_value)
    if isinstance(rounding, StochasticRounding):
        return stops, stops
    return stops | (rounding.carry_positive == 0), stops | (rounding.carry_negative == 0)


def _limits(fmt: Format) -> tuple[Array, Array]:
    """Bits of the largest and of the most negative number; no lower limit where there is no sign."""
    untouched = fmt.mantissa_bits == 23
    bottom = jnp.where(jnp.signbit(fmt.min_finite), _bits(fmt.min_finite), jnp.uint32(ALL))
    return (
        jnp.where(untouched, jnp.uint32(INFINITY), _bits(fmt.max_finite)),
        jnp.where(untouched, jnp.uint32(SIGN | INFINITY), bottom),
    )


def _reach(fmt: Format, limits: tuple[Array, Array], stops: tuple[Array, Array]) -> tuple[Array, Array]:
    """Bits of wider limits, if need be, that change no result and keep the sums of rounding finite."""
    shared = _shares_subnormals(fmt)
    four_times = jnp.uint32(2 << 23)
    top = jnp.where(shared, jnp.uint32(INFINITY), limits[0] + four_times)
    bottom = jnp.where(shared, jnp.uint32(SIGN | INFINITY), limits[1] + four_times)
    return jnp.where(stops[0], limits[0], top), jnp.where(stops[1], limits[1], bottom)


def _clip(bits: Array, top: Array, bottom: Array) -> Array:
    """Limit float32 bits: those of positive numbers are ordered as signed integers, others as unsigned."""
    return jnp.minimum(_unsigned(jnp.minimum(_signed(bits), _signed(top))), bottom)


def _overflow(rounded: Array, limits: tuple[Array, Array], fmt: Format, stops: tuple[Array, Array]) -> Array:
    """Replace what was rounded beyond the range, unless the clip before made that impossible."""
    top = jnp.where(stops[0], jnp.int32(SIGN - 1), _signed(limits[0]))
    bottom = jnp.where(stops[1], jnp.uint32(ALL), limits[1])
    beyond = _bits(fmt.overflow_value)
    rounded = jnp.where(_signed(rounded) > top, beyond, rounded)
    return jnp.where(rounded > bottom, beyond | jnp.uint32(SIGN), rounded)


def _replace_special(rounded: Array, bits: Array, magnitude: Array, fmt: Format, saturate: Flag) -> Array:
    """Set the result where the input is NaN, infinite under the format's rule, or has no counterpart."""
    has_sign = jnp.signbit(fmt.min_finite)
    infinity_special = ~(saturate | jnp.isfinite(fmt.overflow_value))
    last = jnp.where(infinity_special, jnp.uint32(INFINITY - 1), jnp.uint32(INFINITY))
    stays_nan = saturate | jnp.isnan(fmt.nan_value)
    quiet = jnp.where(jnp.isnan(fmt.overflow_value) | ~has_sign, jnp.uint32(QUIET_NAN), jnp.uint32(0))
    sign = jnp.where(fmt.negative_zero, jnp.uint32(SIGN), jnp.uint32(0))
    special = bits & jnp.where(stays_nan, ~quiet, sign) ^ jnp.where(stays_nan, quiet, _bits(fmt.nan_value))
    # Where zero has no counterpart, it wraps round to the largest magnitude of all.
    first = jnp.where(has_sign, jnp.uint32(0), jnp.uint32(1))
    return jnp.where(magnitude - first > last - first, special, rounded)


def _shares_subnormals(fmt: Format) -> Array:
    return jnp.asarray(fmt.min_exponent) <= FLOAT32_MIN_EXPONENT


def _lowest_binade(fmt: Format) -> Array:
    """Bits of the power of two below which the quantum no longer shrinks; 0 where float32 says that."""
    return jnp.where(_shares_subnormals(fmt), jnp.uint32(0), _bits_of_power(fmt.min_exponent))


def _fraction_bits(fmt: Format) -> Array:
    """The number of mantissa bits in the exponent field, to move a binade to its quantum."""
    return jnp.asarray(fmt.mantissa_bits, jnp.int32).astype(jnp.uint32) << jnp.uint32(23)


def _bits_of_power(exponent: Integer) -> Array:
    return (jnp.asarray(exponent, jnp.int32) + EXPONENT_BIAS).astype(jnp.uint32) << jnp.uint32(23)


def _bits(value: Scalar) -> Array:
    return lax.bitcast_convert_type(jnp.asarray(value, jnp.float32), jnp.uint32)


def _float(bits: Array) -> Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def _signed(bits: Array) -> Array:
    return lax.bitcast_convert_type(bits, jnp.int32)


def _unsigned(bits: Array) -> Array:
    return lax.bitcast_convert_type(bits, jnp.uint32)
