"""When a curve of a run leaves its level: what appears first (hacking App. D)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

LEAST = 8


@dataclass(frozen=True)
class ChangePoint:
    """One change of the mean: `index` of the first value after it, mean after minus before, and p-value."""

    index: int
    shift: float
    p_value: float


def change_point(values: ArrayLike) -> ChangePoint:
    """Find the change of mean in a curve [n].

    The statistic is the largest |cumulated sum - its chord| over sqrt(n) and the long-run standard deviation;
    without a change it is Kolmogorov's. Curves may be autocorrelated: the long-run variance is that
    of a process of first order, fitted to what is left around the two means.

    Reference: hacking App. D; Page 1955; Ploberger & Kraemer 1992; Andrews 1991.
    Raises `ValueError` for fewer than eight values, or values that are not finite.
    """
    series = np.asarray(values, float)
    if series.ndim != 1 or len(series) < LEAST or not np.isfinite(series).all():
        raise ValueError(f"a change point needs {LEAST} finite values or more, got shape {series.shape}")
    count = len(series)
    drift = np.abs(np.cumsum(series - series.mean()))[:-1]
    index = int(np.argmax(drift)) + 1
    shift = float(series[index:].mean() - series[:index].mean())
    residuals = series - np.where(np.arange(count) < index, series[:index].mean(), series[index:].mean())
    variance = _long_run_variance(residuals)
    if variance <= 0:
        statistic = np.inf if shift else 0.0
    else:
        statistic = float(drift[index - 1] / np.sqrt(variance * count))
    return ChangePoint(index, shift, float(stats.kstwobign.sf(statistic)))


def _long_run_variance(residuals: np.ndarray) -> float:
    """Return the variance of the shocks of an AR(1) process over (1 - phi)^2.

    phi is corrected for the two means that were fitted, and kept below 0.97.
    Reference: Kendall 1954 (bias -(1 + 3 phi) / n with one mean); Andrews 1991 Sec. 6 (0.97).
    """
    count, square = len(residuals), residuals[:-1] @ residuals[:-1]
    phi = residuals[1:] @ residuals[:-1] / square if square > 0 else 0.0
    shocks = residuals[1:] - phi * residuals[:-1]
    phi = np.clip(phi + 2 * (1 + 3 * phi) / count, -0.97, 0.97)
    return float(shocks @ shocks / (count - 4) / (1 - phi) ** 2)
