"""Effects over runs that share initial policies: intervals, and tests corrected for their number."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


@dataclass(frozen=True)
class Interval:
    """A number, its confidence interval, and its number of independent clusters."""

    effect: float
    low: float
    high: float
    num_clusters: int = 0


def paired_effect(
    a: ArrayLike,
    b: ArrayLike,
    clusters: ArrayLike,
    *,
    resamples: int = 4000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Mean of a - b over runs paired by index, with an interval over clusters.

    a, b: one number per run, of equal length; b may be a single number. clusters: one label per run for the
    unit that is independent (the warm start); seeds of one warm start stay together. The interval is the
    bootstrap's percentile interval, widened for small samples. Where even the range of n clusters could not
    cover `level` (it covers a median with 1 - 2^(1-n): five clusters and fewer at 95%) it is Student's,
    over clusters.

    Reference: Davison & Hinkley 1997 Sec. 3.8 (complete clusters), Hesterberg 2015 Sec. 5.3 (widening).
    Raises `ValueError` for unequal lengths, numbers that are not finite, and fewer than two clusters.
    """
    sums, counts = _by_cluster(a, b, clusters)
    num_clusters = len(sums)
    effect = float(sums.sum() / counts.sum())
    widening = np.sqrt(num_clusters / (num_clusters - 1))
    quantile = stats.t.ppf((1 + level) / 2, num_clusters - 1) * widening
    if 2.0 ** (1 - num_clusters) > 1 - level:
        residuals = sums - effect * counts
        reach = float(quantile * np.sqrt((residuals**2).sum()) / counts.sum())
        return Interval(effect, effect - reach, effect + reach, num_clusters)
    drawn = np.random.default_rng(seed).integers(num_clusters, size=(resamples, num_clusters))
    means = sums[drawn].sum(-1) / counts[drawn].sum(-1)
    tail = stats.norm.sf(quantile)
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(effect, min(float(low), effect), max(float(high), effect), num_clusters)


def _by_cluster(a: ArrayLike, b: ArrayLike, clusters: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Sums of a - b and numbers of runs, by cluster."""
    first, second, labels = np.asarray(a, float), np.asarray(b, float), np.asarray(clusters)
    if first.ndim != 1 or labels.shape != first.shape or second.shape not in ((), first.shape):
        shapes = f"{first.shape}, {second.shape}, {labels.shape}"
        raise ValueError(f"a, b and clusters need one entry per run, got shapes {shapes}")
    difference = first - second
    if not np.isfinite(difference).all():
        raise ValueError(f"{(~np.isfinite(difference)).sum()} of {len(difference)} runs are not finite")
    names, index = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"an interval needs at least two clusters, got {names.tolist()}")
    return np.bincount(index, difference), np.bincount(index).astype(float)


def holm(p_values: ArrayLike) -> np.ndarray:
    """Return p-values [..., n] adjusted for n tests: those below alpha have an error with probability alpha.

    Reference: Holm 1979.
    """
    values = np.asarray(p_values, float)
    order = np.argsort(values, axis=-1, kind="stable")
    factors = values.shape[-1] - np.arange(values.shape[-1])
    ranked = np.maximum.accumulate(np.take_along_axis(values, order, -1) * factors, axis=-1)
    adjusted = np.empty_like(values)
    np.put_along_axis(adjusted, order, np.minimum(ranked, 1.0), -1)
    return adjusted


def holm_levels(p_values: ArrayLike, alpha: float = 0.05) -> np.ndarray:
    """Return the level [n] at which Holm's method tested each of n hypotheses.

    The k-th smallest p-value is rejected at alpha / (n - k + 1); those that are not rejected are tested at
    alpha over their number, so that their intervals cover together.

    Reference: Holm 1979.
    """
    values = np.asarray(p_values, float)
    order = np.argsort(values, kind="stable")
    steps = alpha / (len(values) - np.arange(len(values)))
    failed = np.flatnonzero(values[order] > steps)
    if len(failed):
        steps[failed[0] :] = steps[failed[0]]
    levels = np.empty_like(values)
    levels[order] = steps
    return levels
