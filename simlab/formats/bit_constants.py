"""Integer constants of a format, a rounding mode and an overflow rule, which the rounding kernel reads.

They choose by arithmetic, because a traced scalar that selects between vectors tends to become a branch in
the inner loop.
"""

from dataclasses import fields
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from simlab.core.pytree import Flag, Integer, Scalar, pytree, static
from simlab.formats.format import FLOAT32_MIN_EXPONENT, Format
from simlab.formats.rounding_modes import ROUNDINGS, Rounding, StochasticRounding

SIGN = 0x80000000
MAGNITUDE = 0x7FFFFFFF
INFINITY = 0x7F800000
QUIET_NAN = 0x7FC00000
ALL = 0xFFFFFFFF
SMALLEST_NORMAL = 0x00800000
MANTISSA_BITS = 23
EXPONENT_BIAS = 127

Word = int | Array
BySign = tuple[Word, Word]
"""One value for positive and one for negative numbers."""
Unsigned = np.ndarray | np.uint32 | Array


class BitConstants(NamedTuple):
    """Numbers of the kernel: Python integers if they are known when a program is traced, else int32 scalars.

    - `lowest`: biased exponent below which the quantum no longer shrinks, 0 where float32 says that.
    - `quantum`: bits of the smallest positive number. `dropped` minus the biased exponent, at least
      `least_dropped`, is the number of float32's last bits that the format lacks.
    - `shift`: what is added to the dropped bits is `all ones >> shift`, and 1 at ties that go away from zero:
      those whose last kept bit is set in the magnitude or in `tie_bits`, where `nearest` is 1.
    - `threshold`: magnitudes up to it become `vanished`. Bits below `least_positive` are those of negative
      numbers.
    - `limit`: magnitudes beyond it become `beyond`.
    - `last`: magnitudes beyond it are special and become `bits & special_mask ^ special_flip`.
    """

    lowest: Word
    quantum: Word
    dropped: Word
    least_dropped: Word
    shift: BySign
    nearest: Word
    tie_bits: Word
    threshold: BySign
    vanished: BySign
    least_positive: Word
    limit: BySign
    beyond: BySign
    last: Word
    special_mask: Word
    special_flip: Word


@pytree
class PreparedFormat(Format):
    """A format with the constants of one rounding mode and overflow rule, see `prepare_format`."""

    constants: BitConstants


@pytree
class KnownFormat(PreparedFormat):
    """A prepared format whose constants are part of a compiled function, even if its numbers are traced."""

    constants: BitConstants = static()


def is_on_host(*numbers: object) -> bool:
    """Return whether all numbers in these trees are Python's or NumPy's, known when a program is traced."""
    return not any(isinstance(leaf, Array) for leaf in jax.tree.leaves(numbers))


def prepare_format(fmt: Format, rounding: Rounding | StochasticRounding, saturate: Flag) -> PreparedFormat:
    """Return `fmt` with its constants, for use with this mode and rule only; rounding gives the same bits.

    A format that is prepared already is returned as it is. Constants of known numbers are derived on the
    host. A compiled function that prepares a traced format outside its loops computes them once, otherwise in
    every fused kernel.

    Args:
        fmt: format whose numbers may be traced.
        rounding: rounding mode.
        saturate: value of `OVERFLOWS`.
    """
    if isinstance(fmt, PreparedFormat):
        return fmt
    numbers = {field.name: getattr(fmt, field.name) for field in fields(Format)}
    constants = _bit_constants(fmt, rounding, saturate)
    kind = KnownFormat if is_on_host(constants) else PreparedFormat
    return kind(**numbers, constants=constants)


def _bit_constants(fmt: Format, rounding: Rounding | StochasticRounding, saturate: Flag) -> BitConstants:
    # Stochastic rounding may take any magnitude upward, too, so it shares the constants of this mode.
    is_chance = isinstance(rounding, StochasticRounding)
    mode = ROUNDINGS["nearest_away"] if is_chance else rounding
    assert isinstance(mode, Rounding)
    xp = np if is_on_host(fmt, mode, saturate) else jnp
    # Words wrap round at 2^32.
    with np.errstate(over="ignore"):
        words = _range_constants(xp, fmt, mode, saturate) | _grid_constants(xp, fmt, mode, is_chance)
    return BitConstants(**jax.tree.map(_to_signed, words))


def _range_constants(
    xp: ModuleType, fmt: Format, mode: Rounding, saturate: Flag
) -> dict[str, Unsigned | tuple[Unsigned, Unsigned]]:
    word, has_sign = xp.uint32, xp.signbit(fmt.min_finite)
    stops, stays_nan = saturate | xp.isfinite(fmt.overflow_value), saturate | xp.isnan(fmt.nan_value)
    quiet = xp.where(xp.isnan(fmt.overflow_value) | ~has_sign, word(QUIET_NAN), word(0))
    zero = xp.where(fmt.negative_zero, word(SIGN), word(0))
    is_float32 = fmt.mantissa_bits == MANTISSA_BITS
    limit = [
        xp.where(is_float32, word(INFINITY), _word(finite, xp) & word(MAGNITUDE))
        for finite in (fmt.max_finite, fmt.min_finite)
    ]
    overflow = _word(fmt.overflow_value, xp) & word(MAGNITUDE)
    # A mode that does not grow stops at the last number; so does the rule that saturates.
    beyond = [
        xp.where(stops | (carry == 0), end, overflow)
        for carry, end in zip((mode.carry_positive, mode.carry_negative), limit, strict=True)
    ]
    return {
        "limit": tuple(limit),
        "beyond": tuple(beyond),
        "last": xp.where(stops, word(INFINITY), word(INFINITY - 1)),
        "special_mask": xp.where(stays_nan, ~quiet, zero),
        "special_flip": xp.where(stays_nan, quiet, _word(fmt.nan_value, xp)),
        # Without a sign, zero and negative numbers become NaN.
        "least_positive": xp.where(has_sign, word(0), word(1)),
        "vanished": (
            xp.where(has_sign, word(0), _word(fmt.min_finite, xp)),
            xp.where(has_sign, zero, word(QUIET_NAN)),
        ),
    }


def _grid_constants(
    xp: ModuleType, fmt: Format, mode: Rounding, is_chance: bool
) -> dict[str, Unsigned | tuple[Unsigned, Unsigned]]:
    word, has_sign = xp.uint32, xp.signbit(fmt.min_finite)
    mantissa_bits = _integer(fmt.mantissa_bits, xp)
    is_touched, is_nearest = fmt.mantissa_bits != MANTISSA_BITS, mode.carry_positive == 0.5
    shared = fmt.min_exponent <= FLOAT32_MIN_EXPONENT
    lowest = xp.where(shared, word(0), _integer(fmt.min_exponent + EXPONENT_BIAS, xp))
    subnormal = word(2 * SMALLEST_NORMAL) >> (mantissa_bits & word(31))
    normal = (lowest - mantissa_bits) << word(MANTISSA_BITS)
    quantum = xp.where(shared, subnormal >> word(1), normal)
    half = xp.where(shared, subnormal >> word(2), normal - word(SMALLEST_NORMAL))
    # e8m0 has its smallest number below the quantum.
    before_half = xp.where(has_sign, half - word(1), word(SMALLEST_NORMAL * 3 // 4 - 1))
    smallest = xp.where(has_sign, word(0), _word(fmt.min_finite, xp))
    after_nearest = xp.where(mode.ties_even, half, before_half)
    if is_chance:  # which takes nothing up to the quantum there
        smallest = after_nearest = xp.where(has_sign, word(0), quantum - word(1))

    def threshold(carry: Scalar) -> Unsigned:
        grown = xp.where(is_nearest, after_nearest, smallest)
        return xp.where((carry > 0) & is_touched, grown, quantum - word(1))

    def shift(carry: Scalar) -> Unsigned:
        return xp.where(carry == 0.5, word(1), xp.where(carry > 0, word(0), word(31)))

    return {
        "lowest": lowest,
        "quantum": quantum,
        "dropped": lowest + word(MANTISSA_BITS) - mantissa_bits,
        "least_dropped": word(MANTISSA_BITS) - mantissa_bits,
        "shift": (shift(mode.carry_positive), shift(mode.carry_negative)),
        "nearest": _integer(is_nearest & is_touched, xp),
        # The implicit bit is odd. All bits are set, so that the last is, where every tie grows.
        "tie_bits": xp.where(mode.ties_even, word(SMALLEST_NORMAL), word(ALL)),
        "threshold": (
            threshold(mode.carry_positive),
            xp.where(has_sign, threshold(mode.carry_negative), word(MAGNITUDE)),
        ),
    }


def _integer(value: Integer | Flag, xp: ModuleType) -> Unsigned:
    return xp.asarray(value).astype(xp.uint32)


def _word(value: Scalar, xp: ModuleType) -> Unsigned:
    return xp.asarray(value, xp.float32).view(xp.uint32)


def _to_signed(word: Unsigned) -> Word:
    if isinstance(word, Array):
        return lax.bitcast_convert_type(word, jnp.int32)
    return int(np.asarray(word, np.uint32).view(np.int32))
