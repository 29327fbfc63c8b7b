"""Effects over runs that share initial policies: intervals, and tests corrected for their number."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from simlab.studies.samples import RatioOfMeans


@dataclass(frozen=True)
class Interval:
    """A number, its confidence interval, and its number of independent clusters."""

    effect: float
    low: float
    high: float
    num_clusters: int = 0


def paired_effect(a: ArrayLike, b: ArrayLike, clusters: ArrayLike, *, level: float = 0.95) -> Interval:
    """Return the mean of a - b over runs paired by index, with the claims board's interval over clusters.

    a, b: one number per run, of equal length; b may be a single number. clusters: one label per run for the
    unit that is independent (the warm start); seeds of one warm start stay together. The interval is
    unbounded if the clusters are too few for the level: sign flips of n clusters reach 1 - 2 / 2^n.

    Raises `ValueError` for unequal lengths, numbers that are not finite, and fewer than two clusters.
    """
    sample = RatioOfMeans(*_by_cluster(a, b, clusters))
    return Interval(sample.estimate, *sample.interval(1 - level), sample.num_policies)


def _by_cluster(a: ArrayLike, b: ArrayLike, clusters: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return sums of a - b and numbers of runs, by cluster."""
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
