"""Exact sign-flip tests of a mean: the contrasts need a symmetric distribution, nothing else."""

import numpy as np
from numpy.typing import ArrayLike

MAX_EXACT = 32
"""Contrasts for which all 2^n flips are counted; more are sampled."""
SAMPLED = 99_999
TIE = 1e-12
"""Relative size of a difference of two sums that is rounding."""


def flip_count(values: ArrayLike) -> tuple[int, int]:
    """Return how many sign flips of `values` [n] have a mean at least as large, and how many flips there are.

    A flip raises the sum by minus twice the sum of the flipped values, so the count is that of subsets whose
    sum is not positive. Both halves of the values are enumerated and their sums joined by bisection: 2^(n/2)
    sums instead of 2^n.

    Reference: Fisher 1935, Sec. 21 (the test); Horowitz & Sahni 1974 (meeting in the middle).
    """
    x = np.asarray(values, float)
    if len(x) > MAX_EXACT:
        return _sampled_count(x)
    first, second = (_subset_sums(half) for half in np.split(x, [len(x) // 2]))
    second.sort()
    bound = TIE * np.abs(x).sum()
    return int(np.searchsorted(second, bound - first, side="right").sum()), 2 ** len(x)


def flip_p(values: ArrayLike) -> float:
    """Return twice the one-sided p-value of a mean of `values` [n] above zero: at least 2 / 2^n."""
    count, total = flip_count(values)
    return 2 * count / total


def _subset_sums(values: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def _sampled_count(values: np.ndarray) -> tuple[int, int]:
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(SAMPLED, len(values)))
    bound = TIE * np.abs(values).sum()
    return 1 + int((signs @ values >= values.sum() - bound).sum()), SAMPLED + 1
