"""The scalar oracle of tensor cores: one element of a product, one block at a time, in exact fractions."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

MIN_EXPONENT = -126


def tensor_core_ref(
    a: Sequence[float],
    b: Sequence[float],
    *,
    block: int,
    fraction_bits: int,
    result_bits: int,
    min_exponent: int,
    scales: Sequence[int] | None = None,
) -> np.float32:
    """Return the sum of a[k] b[k] as a tensor core adds it, `block` products at a time; K may be any number.

    `min_exponent` is that of the smallest normal number of the operands' format. `scales` are exponents of
    powers of two by which the products are multiplied: the scales of MX blocks, of both sides together.
    Reference: MMA-Sim (arXiv 2511.10909) Sec. IV.
    """
    total = np.float32(0)
    products = list(zip(a, b, [0] * len(a) if scales is None else scales, strict=True))
    for first in range(0, len(products), block):
        total = _add_block(total, products[first:][:block], fraction_bits, result_bits, min_exponent)
    return total


def _add_block(
    c: np.float32,
    products: list[tuple[float, float, int]],
    fraction_bits: int,
    result_bits: int,
    min_exponent: int,
) -> np.float32:
    # float64 holds every product of two 16-bit numbers, so it is infinite only where an operand is.
    special = sum((float(x) * float(y) for x, y, _ in products), float(c))
    if not math.isfinite(special):
        return np.float32(special)
    terms = []
    for x, y, scale in products:
        value = Fraction(float(x)) * Fraction(float(y)) * Fraction(2) ** scale
        terms.append((value, exponent(float(x), min_exponent) + exponent(float(y), min_exponent) + scale))
    return _add_terms(c, terms, fraction_bits, result_bits)


def fp4_tensor_core_ref(
    a: Sequence[float],
    b: Sequence[float],
    a_scales: Sequence[float],
    b_scales: Sequence[float],
    *,
    fraction_bits: int = 35,
    result_bits: int = 23,
) -> np.float32:
    """Return the sum of E2M1 products a[k] b[k] under E4M3 scales, one of each side for 16 of them.

    Reference: MMA-Sim (arXiv 2511.10909), mxf4nvf4 with ue4m3 scales of 16 elements.
    """
    terms = []
    for group, scales in enumerate(zip(a_scales, b_scales, strict=True)):
        k = slice(16 * group, 16 * group + 16)
        value = sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a[k], b[k], strict=True))
        for scale in scales:
            value *= Fraction(float(scale))
        terms.append((value, sum(exponent(float(scale), -6) for scale in scales)))
    total = np.float32(0)
    for first in range(0, len(terms), 4):
        total = _add_terms(total, terms[first:][:4], fraction_bits, result_bits)
    return total


def _add_terms(
    c: np.float32, terms: list[tuple[Fraction, int]], fraction_bits: int, result_bits: int
) -> np.float32:
    """Add terms (value, exponent) to c, aligned to the largest exponent."""
    terms = [(Fraction(float(c)), exponent(float(c), MIN_EXPONENT)), *terms]
    unit = Fraction(2) ** (max(e for _, e in terms) - fraction_bits)
    return truncated_float32(sum(math.trunc(value / unit) for value, _ in terms) * unit, result_bits)


def exponent(x: float, min_exponent: int) -> int:
    """Return floor(log2 |x|), that of the smallest normal number for subnormals, and -126 for zero."""
    return max(math.frexp(x)[1] - 1, min_exponent) if x else MIN_EXPONENT


def truncated_float32(x: Fraction, result_bits: int) -> np.float32:
    """Truncate toward zero to `result_bits` fraction bits in float32's range of exponents; +0 for zero."""
    if not x:
        return np.float32(0)
    top = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    top -= abs(x) < Fraction(2) ** top
    quantum = Fraction(2) ** (max(top, MIN_EXPONENT) - result_bits)
    truncated = math.trunc(x / quantum) * quantum
    if abs(truncated) >= Fraction(2) ** 128:
        return np.float32(math.copysign(math.inf, x))
    return np.float32(float(truncated))
