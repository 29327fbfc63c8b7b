"""The few numbers of a log that several detectors share; pure functions of arrays."""

import numpy as np
from scipy.stats import rankdata


def rms(x: np.ndarray) -> float:
    """Root mean square; NaN for nothing."""
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))) if len(x) else float("nan")


def shared_by_class(values: np.ndarray, classes: np.ndarray) -> float:
    """Share of the variance of `values` that goes with the class and not with the token (intraclass).

    0 when knowing the class says nothing about the value, 1 when it says all. Values beyond their 90th
    percentile are pulled in, so that a few cannot decide. NaN with fewer than two classes or no class of two.
    """
    _, inverse = np.unique(classes, return_inverse=True)
    counts = np.bincount(inverse)
    total, groups = len(values), len(counts)
    if groups < 2 or total <= groups:
        return float("nan")
    limit = np.quantile(np.abs(values), 0.9)
    pulled = np.clip(values, -limit, limit).astype(np.float64)
    means = np.bincount(inverse, pulled) / counts
    between = float((counts * (means - pulled.mean()) ** 2).sum()) / (groups - 1)
    within = float(((pulled - means[inverse]) ** 2).sum()) / (total - groups)
    typical = (total - float((counts.astype(np.float64) ** 2).sum()) / total) / (groups - 1)
    spread = between + (typical - 1) * within
    return (between - within) / spread if spread > 0 else 0.0


def by_class(values: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes that occur, sorted, and the root mean square of `values` in each."""
    names, inverse = np.unique(classes, return_inverse=True)
    squares = np.bincount(inverse, np.square(values, dtype=np.float64))
    return names, np.sqrt(squares / np.bincount(inverse))


def rank_z(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman correlation times sqrt(n - 1): about N(0, 1) for unrelated x and y; 0 if one is constant."""
    a, b = rankdata(x), rankdata(y)
    if len(a) < 3 or a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1] * np.sqrt(len(a) - 1))
