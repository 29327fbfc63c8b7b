"""The record of a number format: numbers only, so that precision can be traced and swept."""

from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from simlab.core.pytree import Flag, Integer, Scalar, pytree

# float32 arithmetic flushes subnormals to zero, so a format either shares them (min_exponent -126) or has a
# quantum so far above them that 24 more bits survive.
SMALLEST_QUANTUM_EXPONENT = -102
FLOAT32_MIN_EXPONENT, FLOAT32_MAX_EXPONENT = -126, 127
E8M0_MIN_EXPONENT = -127

Record = TypeVar("Record")


@pytree
class Format:
    """A number format as a pytree of scalars; every leaf may be traced, stacked and vmapped over.

    Representable values are the multiples of 2^(max(e, min_exponent) - mantissa_bits) at binary exponent e,
    between `min_finite` and `max_finite`. An integer format is one whose complete range is subnormal (int8: 7
    mantissa bits, minimum exponent 7). 23 mantissa bits mean float32: values pass untouched.
    Declare with `Format.declare`, which checks the numbers; the name of a format lives in the catalog.

    - `mantissa_bits`: int32, stored fraction bits.
    - `min_exponent`: int32, exponent of the smallest normal number.
    - `max_finite`: float32, the largest value.
    - `min_finite`: float32, the most negative value, or the smallest one of a format without sign and zero.
    - `overflow_value`: float32, what larger magnitudes become under the format's own rule: inf, NaN, or
      `max_finite` in a format that has neither.
    - `nan_value`: float32, what a NaN becomes under that rule: NaN, or a zero whose sign the sign of the NaN
      flips.
    - `negative_zero`: bool, whether -0 exists.

    Reference: OCP OFP8 v1.0 Sec. 5; OCP MX v1.0 Sec. 5.3.
    """

    mantissa_bits: Integer
    min_exponent: Integer
    max_finite: Scalar
    min_finite: Scalar
    overflow_value: Scalar
    nan_value: Scalar
    negative_zero: Flag

    @staticmethod
    def declare(
        mantissa_bits: int,
        min_exponent: int,
        max_finite: float,
        *,
        min_finite: float | None = None,
        overflow_value: float = float("inf"),
        nan_value: float = float("nan"),
        negative_zero: bool = True,
    ) -> "Format":
        """Return a checked format; see `Format` for the fields. `min_finite` defaults to `-max_finite`.

        Raises:
            ValueError: For widths outside float32, quanta that float32 arithmetic flushes to zero, limits
                that are not on the format's grid, and unknown special values.
        """
        min_finite = -max_finite if min_finite is None else min_finite
        _check_width(mantissa_bits, min_exponent, max(max_finite, -min_finite))
        for name, limit in (("max_finite", max_finite), ("min_finite", min_finite)):
            _check_limit(name, limit, mantissa_bits, min_exponent)
        _check_range(min_exponent, max_finite, min_finite, negative_zero)
        _check_special(max_finite, overflow_value, nan_value, negative_zero)
        return Format(
            np.int32(mantissa_bits),
            np.int32(min_exponent),
            np.float32(max_finite),
            np.float32(min_finite),
            np.float32(overflow_value),
            np.float32(nan_value),
            np.bool_(negative_zero),
        )


def stack(records: list[Record]) -> Record:
    """Stack records of numbers (formats, roundings) leaf by leaf, ready for `jax.vmap`."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *records)


def with_float32_range(fmt: Format) -> Format:
    """Return `fmt` with the largest numbers that its mantissa holds, if its range is that of float32.

    Other formats are returned unchanged.
    """
    if fmt.min_exponent != FLOAT32_MIN_EXPONENT or fmt.max_finite < 2.0**FLOAT32_MAX_EXPONENT:
        return fmt
    largest = np.float32((2.0 - 2.0 ** -int(fmt.mantissa_bits)) * 2.0**FLOAT32_MAX_EXPONENT)
    return replace(fmt, max_finite=largest, min_finite=-largest)


def _check_width(mantissa_bits: int, min_exponent: int, max_finite: float) -> None:
    """Check what the kernel's float32 arithmetic can hold exactly; see `rounding._round_by_addition`."""
    if mantissa_bits == 23 and min_exponent == FLOAT32_MIN_EXPONENT:
        return
    if not 0 <= mantissa_bits <= 21:
        raise ValueError(
            f"mantissa_bits must be 0 to 21, or 23 with min_exponent -126 (float32), got {mantissa_bits}."
        )
    if min_exponent == FLOAT32_MIN_EXPONENT or (min_exponent, mantissa_bits) == (E8M0_MIN_EXPONENT, 0):
        return
    lowest, largest = SMALLEST_QUANTUM_EXPONENT + mantissa_bits, 2.0 ** (102 + mantissa_bits)
    if min_exponent < lowest or abs(max_finite) >= largest:
        raise ValueError(
            f"min_exponent must be {FLOAT32_MIN_EXPONENT}, or at least {lowest} with max_finite below "
            f"{largest} for {mantissa_bits} mantissa bits, got {min_exponent} and {max_finite}."
        )


def _check_limit(name: str, value: float, mantissa_bits: int, min_exponent: int) -> None:
    if not np.isfinite(value) or float(np.float32(value)) != value:
        raise ValueError(f"{name} must be a finite float32, got {value!r}.")
    exponent = max(int(np.frexp(value)[1]) - 1, min_exponent)
    if (Fraction(value) / Fraction(2) ** (exponent - mantissa_bits)).denominator != 1:
        raise ValueError(f"{name} must be representable with {mantissa_bits} mantissa bits, got {value!r}.")


def _check_range(min_exponent: int, max_finite: float, min_finite: float, negative_zero: bool) -> None:
    if not max_finite > 0 or min_finite == 0 or (min_finite > 0 and min_exponent != E8M0_MIN_EXPONENT):
        raise ValueError(
            f"max_finite must be positive and min_finite negative (positive only for min_exponent "
            f"{E8M0_MIN_EXPONENT}, without sign and zero), got {max_finite} and {min_finite}."
        )
    if min_exponent == FLOAT32_MIN_EXPONENT and not negative_zero:
        raise ValueError(f"negative_zero must be True with min_exponent {min_exponent}, got {negative_zero}.")


def _check_special(max_finite: float, overflow_value: float, nan_value: float, negative_zero: bool) -> None:
    if not (np.isnan(overflow_value) or overflow_value in (np.inf, max_finite)):
        raise ValueError(
            f"overflow_value must be inf, nan or max_finite ({max_finite}), got {overflow_value!r}."
        )
    is_zero = nan_value == 0 and (negative_zero or not np.signbit(nan_value))
    if not (np.isnan(nan_value) or (is_zero and overflow_value == max_finite)):
        raise ValueError(
            f"nan_value must be nan, or a zero if overflow_value is max_finite, got {nan_value!r}."
        )
