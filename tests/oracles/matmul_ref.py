"""The scalar oracles of accumulators: one element of a matrix product at a time, written to be read."""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

Round = Callable[[np.float32], np.float32]


def exact_ref(a: Sequence[float], b: Sequence[float]) -> np.float32:
    """Sum of a[k] b[k] in fractions, rounded once to float32; finite operands."""
    products = (Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))
    return nearest_float32(sum(products, Fraction(0)))


def partial_sums_ref(
    a: Sequence[float],
    b: Sequence[float],
    rounded: Round,
    block: int = 32,
    order: str = "sequential",
    splits: int = 1,
) -> np.float32:
    """Sum of a[k] b[k] as `PartialSums` with `inside="ordered"` has it; `rounded` rounds a partial sum.

    Products and additions are fused, which changes nothing where products are exact in float32.
    Raises `ValueError` for an unknown order.
    """
    terms = list(zip(a, b, strict=True))
    if order == "split-k":
        block = -(-len(terms) // splits)
    blocks = [terms[i : i + block] for i in range(0, len(terms), block)]
    zero = np.float32(0)
    if order == "sequential":
        total = zero
        for products in blocks:
            total = rounded(_add_products(total, products))
        return total
    partials = [rounded(_add_products(zero, products)) for products in blocks]
    if order == "split-k":
        total = zero
        for partial in partials:
            total = rounded(np.float32(total + partial))
        return total
    if order != "pairwise":
        raise ValueError(f"unknown order {order!r}; allowed: sequential, pairwise, split-k")
    while len(partials) > 1:
        partials += [zero] * (len(partials) % 2)
        pairs = zip(partials[::2], partials[1::2], strict=True)
        partials = [rounded(np.float32(x + y)) for x, y in pairs]
    return partials[0]


def matmul_ref(a: np.ndarray, b: np.ndarray, dot: Callable[..., np.float32]) -> np.ndarray:
    """Apply a scalar `dot` to each row of a [M, K] and column of b [K, N]; float32 [M, N]."""
    return np.array([[dot(row, column) for column in b.T] for row in a], np.float32)


def nearest_float32(x: Fraction) -> np.float32:
    """Round a fraction to the nearest float32, ties to even, zero below 2^-126, infinite above the range."""
    if abs(x) < Fraction(2) ** -126:
        return np.float32(0)
    quantum = Fraction(2) ** -149
    while abs(x) >= quantum * 2**24:
        quantum *= 2
    rounded = round(x / quantum) * quantum
    if abs(rounded) >= Fraction(2) ** 128:
        return np.float32(np.inf) if x > 0 else np.float32(-np.inf)
    return np.float32(float(rounded))


def _add_products(total: np.float32, products: Sequence[tuple[float, float]]) -> np.float32:
    for x, y in products:
        total = nearest_float32(Fraction(float(total)) + Fraction(float(x)) * Fraction(float(y)))
    return total
