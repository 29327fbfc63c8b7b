"""Statistics that compare seeds with each other and with a printed table."""

import math

import numpy as np
from scipy import stats


def summary(rho: np.ndarray) -> dict[str, float]:
    """Return mean, std, max and min of rho, the columns of the paper's table."""
    rho = np.asarray(rho, float)
    return {name: float(getattr(rho, name)()) for name in ("mean", "std", "max", "min")}


def prediction_interval(
    values: np.ndarray, of: int, alpha: float, printed: float = 0.0
) -> tuple[float, float]:
    """Return bounds on the average of `of` further draws, given `values` (normal theory).

    `printed` is one unit of the last printed digit; half of it is added on both sides.
    """
    values = np.asarray(values, float)
    half = stats.t.isf(alpha / 2, len(values) - 1) * values.std(ddof=1)
    half = half * math.sqrt(1 / of + 1 / len(values)) + printed / 2
    return float(values.mean() - half), float(values.mean() + half)


def mean_interval(values: np.ndarray, alpha: float = 0.05) -> tuple[float, float]:
    """Return the t interval of the mean of `values`."""
    values = np.asarray(values, float)
    half = stats.t.isf(alpha / 2, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """Return |A and B| / |A or B| of the sets of values."""
    a, b = np.unique(a), np.unique(b)
    return len(np.intersect1d(a, b, assume_unique=True)) / len(np.union1d(a, b))


def shared_mass(a: np.ndarray, b: np.ndarray) -> float:
    """Return the fraction of sample `a` whose values also occur in sample `b`."""
    return float(np.isin(a, b).mean())


def total_variation(a: np.ndarray, b: np.ndarray) -> float:
    """Return the total-variation distance of the samples' distributions over exact values."""
    both, where = np.unique(np.concatenate([a, b]), return_inverse=True)
    counts = np.bincount(where[: len(a)], minlength=len(both)) / len(a)
    return float(np.abs(counts - np.bincount(where[len(a) :], minlength=len(both)) / len(b)).sum() / 2)


def noise_variation(a: np.ndarray, b: np.ndarray, generator: np.random.Generator, splits: int = 8) -> float:
    """Return the mean total variation of random splits of both samples, that of sampling alone."""
    pooled = np.unique(np.concatenate([a, b]), return_inverse=True)[1]
    distances = []
    for _ in range(splits):
        order = generator.permutation(pooled)
        counts = [
            np.bincount(part, minlength=pooled.max() + 1) for part in (order[: len(a)], order[len(a) :])
        ]
        distances.append(np.abs(counts[0] / len(a) - counts[1] / len(b)).sum() / 2)
    return float(np.mean(distances))
