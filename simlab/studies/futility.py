"""The probability that a study will be decided if it continues, from its results so far."""

import numpy as np
from scipy import stats

from simlab.studies.records import Criterion
from simlab.studies.samples import Sample


def predictive_power(sample: Sample, criterion: Criterion, policies: int, alpha: float) -> float:
    """Return the predictive probability that an interval over all `policies` gives a verdict.

    The estimate and its standard error, from the interval so far, are taken as normal; the
    final estimate has the variance that the remaining initial policies and today's uncertainty add.

    Args:
        sample: of the initial policies so far.
        criterion: with direction and margin.
        policies: initial policies of the complete study.
        alpha: level of the last look.

    Reference: Spiegelhalter, Freedman & Blackburn 1986 (predictive power).
    """
    low, high = sample.interval(0.32)
    error_now = (high - low) / 2
    if not np.isfinite(error_now) or sample.num_policies >= policies:
        return 1.0
    fraction = sample.num_policies / policies
    error = error_now * np.sqrt(fraction)
    std = np.sqrt(max(error_now**2 - error**2, 0.0))
    reach = float(stats.norm.isf(alpha / 2)) * error
    above = _probability(criterion.margin + reach, np.inf, sample.estimate, std)
    below = _probability(-np.inf, -criterion.margin - reach, sample.estimate, std)
    inside = _probability(-criterion.margin + reach, criterion.margin - reach, sample.estimate, std)
    return above + below + inside


def _probability(low: float, high: float, mean: float, std: float) -> float:
    if low >= high:
        return 0.0
    if std == 0:
        return float(low <= mean <= high)
    return float(stats.norm.cdf((high - mean) / std) - stats.norm.cdf((low - mean) / std))
