"""Statistics that several detectors share."""

from collections.abc import Iterable

import numpy as np

EPSILON = 1e-12


def rank_values(values: np.ndarray) -> np.ndarray:
    """Return ranks from 1 [N]; equal values get the mean of theirs. In NumPy: trainers lack SciPy."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(values) else np.zeros(0, int)
    counts = np.diff(np.append(starts, len(values)))
    ranks = np.empty(len(values))
    ranks[order] = np.repeat(starts + (counts + 1) / 2, counts)
    return ranks


def rms(x: np.ndarray) -> float:
    """Return the root mean square; NaN for an empty array."""
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))) if len(x) else float("nan")


def mean_by_class(values: np.ndarray, index: np.ndarray, count: int = 0) -> np.ndarray:
    """Return the mean of `values` [N] in each of at least `count` classes `index` [N]; 0 in an empty one."""
    return np.bincount(index, values, count) / np.maximum(np.bincount(index, minlength=count), 1)


def correlate(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of two arrays [N]; 0 if one is constant."""
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt(np.mean(a * a) * np.mean(b * b))
    return float(np.mean(a * b) / scale) if scale > EPSILON else 0.0


def largest_finite(values: Iterable[float]) -> float:
    """Return the largest finite value; NaN without one."""
    return max((value for value in values if np.isfinite(value)), default=np.nan)


def intraclass_correlation(values: np.ndarray, classes: np.ndarray) -> float:
    """Return the intraclass correlation: the fraction of the variance of `values` between classes.

    Values are winsorized at the 90th percentile of their magnitude. NaN with fewer than two classes or no
    class of two.
    """
    _, inverse = np.unique(classes, return_inverse=True)
    counts = np.bincount(inverse)
    total, groups = len(values), len(counts)
    if groups < 2 or total <= groups:
        return float("nan")
    limit = np.quantile(np.abs(values), 0.9)
    winsorized = np.clip(values, -limit, limit).astype(np.float64)
    means = np.bincount(inverse, winsorized) / counts
    between = float((counts * (means - winsorized.mean()) ** 2).sum()) / (groups - 1)
    within = float(((winsorized - means[inverse]) ** 2).sum()) / (total - groups)
    typical = (total - float((counts.astype(np.float64) ** 2).sum()) / total) / (groups - 1)
    spread = between + (typical - 1) * within
    return (between - within) / spread if spread > 0 else 0.0


def spearman_z(x: np.ndarray, y: np.ndarray) -> float:
    """Return the Spearman correlation times sqrt(n - 1): about N(0, 1) if independent, 0 if constant."""
    a, b = rank_values(x), rank_values(y)
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1] * np.sqrt(len(a) - 1))
