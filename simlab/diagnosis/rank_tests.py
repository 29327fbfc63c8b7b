"""Statistics shared by several detectors."""

from collections.abc import Iterable

import numpy as np

EPSILON = 1e-12


def rank_values(values: np.ndarray) -> np.ndarray:
    """Return ranks from 1 [N]; equal values get their mean rank. Uses NumPy, since trainers lack SciPy.

    Args:
        values: numbers [N].

    Example:
        >>> rank_values(np.array([3.0, 1.0, 3.0])).tolist()
        [2.5, 1.0, 2.5]
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(values) else np.zeros(0, int)
    counts = np.diff(np.append(starts, len(values)))
    ranks = np.empty(len(values))
    ranks[order] = np.repeat(starts + (counts + 1) / 2, counts)
    return ranks


def rms(x: np.ndarray) -> float:
    """Return the root mean square of x [N], computed in float64; NaN for an empty array."""
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))) if len(x) else float("nan")


def mean_by_class(values: np.ndarray, index: np.ndarray, count: int = 0) -> np.ndarray:
    """Return the mean of `values` in each class; 0 in an empty class.

    Args:
        values: numbers [N].
        index: class of each value [N], integers from 0.
        count: least number of classes.

    Returns:
        Means [K], K = max(count, largest index + 1).
    """
    return np.bincount(index, values, count) / np.maximum(np.bincount(index, minlength=count), 1)


def correlate(a: np.ndarray, b: np.ndarray) -> float:
    """Return the Pearson correlation of two arrays [N]; 0 if one is constant."""
    a, b = a - a.mean(), b - b.mean()
    scale = np.sqrt(np.mean(a * a) * np.mean(b * b))
    return float(np.mean(a * b) / scale) if scale > EPSILON else 0.0


def largest_finite(values: Iterable[float]) -> float:
    """Return the largest finite value; NaN without one."""
    return max((value for value in values if np.isfinite(value)), default=np.nan)


def intraclass_correlation(values: np.ndarray, classes: np.ndarray) -> float:
    """Return the intraclass correlation: the fraction of the variance of `values` between classes.

    Values are winsorized at the 90th percentile of their magnitude.

    Args:
        values: numbers [N].
        classes: class label of each value [N].

    Returns:
        At most 1; NaN if there are fewer than two classes, or if no class has two values.
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
    """Return the Spearman correlation times sqrt(n - 1): about N(0, 1) if independent, 0 if constant.

    Args:
        x: numbers [N].
        y: numbers [N]; with fewer than three the result is 0.
    """
    a, b = rank_values(x), rank_values(y)
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1] * np.sqrt(len(a) - 1))
