"""The scalar oracle: one number at a time, in exact fractions, written to be read and to be slow."""

import math
from fractions import Fraction

import numpy as np

from simlab.formats.format import E8M0_MIN_EXPONENT, Format


def round_ref(
    x: float | np.float32, fmt: Format, rounding: str, overflow: str = "saturate", word: int | None = None
) -> np.float32:
    """Round one float32 number to `fmt` by the definition of the mode; names as in the catalogs.

    `word` is the 32-bit random word of stochastic rounding. Raises `ValueError` for unknown names.
    Reference: IEEE 754-2019 Sec. 4.3, 7.4.
    """
    value = np.float32(x)
    if fmt.mantissa_bits == 23:
        return value
    negative = bool(np.signbit(value))
    without_zero = fmt.min_finite > 0
    if np.isnan(value) or (without_zero and (negative or value == 0)):
        return _nan(negative, fmt, overflow)
    if np.isinf(value):
        return _beyond(negative, fmt, overflow, stops=False)
    magnitude = Fraction(float(abs(value)))
    if magnitude == 0:
        return _restore_sign(Fraction(0), negative, fmt)
    if without_zero and magnitude < Fraction(float(fmt.min_finite)):
        return np.float32(fmt.min_finite)

    quantum = Fraction(2) ** (max(_floor_log2(magnitude), int(fmt.min_exponent)) - int(fmt.mantissa_bits))
    steps, fraction = divmod(magnitude / quantum, 1)
    if fraction and _goes_away(rounding, negative, steps, fraction, magnitude, fmt, word):
        steps += 1
    rounded = steps * quantum
    if rounded > abs(Fraction(float(_limit(negative, fmt)))):
        stops = rounding == "toward_zero" or rounding == ("up" if negative else "down")
        return _beyond(negative, fmt, overflow, stops)
    return _restore_sign(rounded, negative, fmt)


def _goes_away(
    rounding: str,
    negative: bool,
    steps: int,
    fraction: Fraction,
    magnitude: Fraction,
    fmt: Format,
    word: int | None,
) -> bool:
    """Whether a magnitude `fraction` of the way between two neighbors takes the one farther from zero."""
    if fmt.min_exponent == E8M0_MIN_EXPONENT and magnitude < Fraction(2) ** -126:
        # Only 2^-127 lies there. ml_dtypes takes everything above it to 2^-126, chance nothing.
        if rounding == "nearest_even":
            return True
        if rounding == "stochastic":
            return False
    match rounding:
        case "nearest_even":
            return fraction > Fraction(1, 2) or (fraction == Fraction(1, 2) and steps % 2 == 1)
        case "nearest_away":
            return fraction >= Fraction(1, 2)
        case "toward_zero":
            return False
        case "up":
            return not negative
        case "down":
            return negative
        case "stochastic" if word is not None:
            dropped = 23 - int(fmt.mantissa_bits)
            # `round` of a Fraction takes ties to even.
            return round(fraction * 2**dropped) + (word >> (32 - dropped)) >= 2**dropped
    raise ValueError(f"unknown rounding {rounding!r}, or stochastic without a word")


def _floor_log2(magnitude: Fraction) -> int:
    # A float32 is exact in float64, where it is never subnormal.
    return math.frexp(float(magnitude))[1] - 1


def _limit(negative: bool, fmt: Format) -> np.float32:
    return np.float32(fmt.min_finite if negative else fmt.max_finite)


def _beyond(negative: bool, fmt: Format, overflow: str, stops: bool) -> np.float32:
    """Return the result for a number outside the range; `stops`: finite, not rounded outward."""
    if overflow not in ("saturate", "format"):
        raise ValueError(f"unknown overflow rule {overflow!r}")
    if overflow == "saturate" or stops or np.isfinite(fmt.overflow_value):
        return _limit(negative, fmt)
    return np.float32(-fmt.overflow_value if negative else fmt.overflow_value)


def _nan(negative: bool, fmt: Format, overflow: str) -> np.float32:
    if overflow == "saturate" or np.isnan(fmt.nan_value):
        return np.float32(np.nan)
    return _restore_sign(Fraction(0), bool(np.signbit(fmt.nan_value)) != negative, fmt)


def _restore_sign(magnitude: Fraction, negative: bool, fmt: Format) -> np.float32:
    if magnitude == 0 and not fmt.negative_zero:
        return np.float32(0.0)
    return np.float32(-float(magnitude) if negative else float(magnitude))
