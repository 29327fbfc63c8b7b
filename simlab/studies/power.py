"""The power of a criterion, from the variance of stored runs, at twice its margin."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

from simlab.studies.estimands import Views
from simlab.studies.records import Claim, Criterion, Direction, Trial
from simlab.studies.registration import LOOKS
from simlab.studies.samples import Proportion, RatioOfMeans, Sample, needed_t, ratio_t_p
from simlab.studies.sequential import Looks
from simlab.studies.verdicts import ALPHA, measure_criterion, p_supported, tested_bounds

ENOUGH_POWER = 0.8
DRAWS = 2000
"""Synthetic studies from which the power of a share is counted; its standard error is at most 0.011."""


@dataclass(frozen=True)
class CriterionPower:
    """The probability that a criterion is supported.

    Args:
        power: at a true effect of `alternative`.
        alternative: twice the margin, or 0 where a negligible effect is claimed.
        std: of the contrast over initial policies, in the unit of the margin; None of a proportion.
        num_policies: initial policies of the design.
        alpha: two-sided, of the last look, divided by the number of primary criteria of the paper.
    """

    power: float
    alternative: float
    std: float | None
    num_policies: int
    alpha: float

    @property
    def is_underpowered(self) -> bool:
        """True if the power is below 80%."""
        return self.power < ENOUGH_POWER


def criterion_power(
    views: Views, criterion: Criterion, num_policies: int, family: int
) -> CriterionPower | None:
    """Return the power of a criterion; None if no run is stored.

    A claimed sign is supported if the interval lies beyond the margin: at twice the margin the test has the
    margin to find. A claimed absence is supported if the interval lies inside the margins, at no effect.
    `family` is the number of primary criteria among which Holm's method controls the error.

    Reference: Phillips 1990 (power of two one-sided tests).
    """
    sample = measure_criterion(views, criterion)
    return None if sample is None else sample_power(sample, criterion, num_policies, family)


def sample_power(
    sample: Sample, criterion: Criterion, num_policies: int, family: int
) -> CriterionPower | None:
    """Return the power of a criterion whose runs vary as `sample`; None if it is not a sample of policies."""
    alpha = last_alpha(num_policies, family)
    alternative = 0.0 if criterion.direction in ("zero", "at most") else 2 * criterion.margin
    if isinstance(sample, Proportion):
        power, std = power_of_proportion(sample, criterion, alternative, num_policies, alpha), None
    elif isinstance(sample, RatioOfMeans):
        power, std = ratio_power(sample, criterion, num_policies, alpha), _std(sample)
    else:
        return None
    return CriterionPower(power, alternative, std, num_policies, alpha)


def last_alpha(num_policies: int, family: int) -> float:
    """Return the two-sided level of the last analysis of a criterion among `family` primary ones."""
    looks = Looks(LOOKS) if num_policies > LOOKS[0] else Looks()
    return looks.nominal(ALPHA / family, num_policies)


def largest_std(margin: float, num_policies: int, alpha: float, absent: bool) -> float:
    """Return the standard deviation over initial policies up to which a mean has a power of 80%.

    The arguments are those of `power_of_mean`.
    """
    largest: Any = optimize.brentq(
        lambda std: power_of_mean(margin, std, num_policies, alpha, absent) - ENOUGH_POWER,
        1e-3 * margin,
        1e3 * margin,
    )
    return float(largest)


def ratio_power(sample: RatioOfMeans, criterion: Criterion, num_policies: int, alpha: float) -> float:
    """Return the power of a criterion on a mean or a share whose runs vary as `sample`."""
    if sample.denominator is not None:
        return power_of_share(sample, criterion.direction, criterion.margin, num_policies, alpha)
    skew = sample.skewness * (-1 if criterion.direction == "negative" else 1)
    absent = criterion.direction == "zero"
    return power_of_mean(criterion.margin, _std(sample), num_policies, alpha, absent, skew)


def power_of_mean(
    margin: float, std: float, num_policies: int, alpha: float, absent: bool, skew: float = 0.0
) -> float:
    """Return the chance that an interval lies beyond the margin at twice it; if `absent`, inside at 0.

    `std`, `num_policies` and `alpha` are as in `CriterionPower`. `skew`, of the contrast in the claimed
    direction, raises the t-statistic that the tests need; the statistic itself is taken as that of normal
    contrasts.
    """
    if num_policies < 2:
        return 0.0
    if std == 0:
        return 1.0
    shift = margin * np.sqrt(num_policies) / std
    beyond, mirrored = (
        _tail(needed_t(alpha, num_policies, side * skew), num_policies - 1, shift) for side in (1, -1)
    )
    return max(beyond + mirrored - 1, 0.0) if absent else beyond


def power_of_share(
    sample: RatioOfMeans, direction: Direction, margin: float, num_policies: int, alpha: float
) -> float:
    """Return the fraction of synthetic studies in which a share is supported, by both t-tests.

    Both the remedy's gain and the loss that it is a share of vary between policies, so there is no closed
    form. A study draws stored pairs of them with replacement; the gain of each policy is shifted by the
    same part of its loss, so that the share is twice the margin, or 0 if a negligible effect is claimed.

    Deviation: sign flips are left out, which reject about as often.
    """
    rng = np.random.default_rng(0)
    chosen = rng.integers(sample.num_policies, size=(DRAWS, num_policies))
    above, below = shift_ratio(sample, true_effect(direction, margin))
    return float((supported_ratio_p(above[chosen], below[chosen], direction, margin) <= alpha).mean())


def true_effect(direction: Direction, margin: float) -> float:
    """Return the effect at which power is stated: twice the margin, 0 if a negligible one is claimed."""
    return {"positive": 2 * margin, "negative": -2 * margin}.get(direction, 0.0)


def shift_ratio(sample: RatioOfMeans, effect: float) -> tuple[np.ndarray, np.ndarray]:
    """Return numerator and denominator [n] of a sample, the former shifted so that the ratio is `effect`."""
    below = np.ones_like(sample.numerator) if sample.denominator is None else sample.denominator
    return sample.numerator + (effect - sample.estimate) * below, below


def supported_ratio_p(
    above: np.ndarray, below: np.ndarray, direction: Direction, margin: float
) -> np.ndarray:
    """Return the p-value [...] of the support of a ratio of means over [..., n], by both t-tests."""
    bounds = tested_bounds(direction, margin)
    return np.max([ratio_t_p(above, below, bound, side) for bound, side in bounds], axis=0)


def _tail(bound: float, freedom: int, shift: float) -> float:
    """Return the chance that a noncentral t exceeds `bound`."""
    beyond = float(stats.nct.sf(bound, freedom, shift))
    # Far out in the tail the noncentral t is not computed.
    return beyond if np.isfinite(beyond) else float(stats.norm.sf(bound - shift))


def primary_family(claims: Sequence[Claim], paper: str, is_exploratory: bool = False) -> int:
    """Return for how many primary criteria of a paper one is corrected: an exploratory one for all."""
    trials = [trial for claim in claims if claim.paper == paper for trial in claim.trials]
    return count_sampled(trials, is_exploratory)


def count_sampled(trials: Sequence[Trial], is_exploratory: bool = False) -> int:
    """Return the number of primary criteria with a sampling error, with or without exploratory ones."""
    return sum(each.primary.is_sampled for each in trials if is_exploratory or not each.is_exploratory)


def _std(sample: RatioOfMeans) -> float:
    """Return the std of the contrasts about the estimate, in the unit of the margin."""
    scale = 1.0 if sample.denominator is None else abs(float(sample.denominator.mean()))
    std = float(sample.contrasts(sample.estimate).std(ddof=1))
    return std / scale if scale else np.inf


def power_of_proportion(
    sample: Proportion, criterion: Criterion, alternative: float, num_policies: int, alpha: float
) -> float:
    """Return the exact power; of discordant pairs with as many of them as the stored runs have."""
    p = p_by_count(sample, criterion, num_policies)
    truth = true_proportion(sample, criterion, alternative)
    return float(stats.binom.pmf(np.arange(len(p)), len(p) - 1, truth)[p <= alpha].sum())


def true_proportion(sample: Proportion, criterion: Criterion, effect: float) -> float:
    """Return the probability of a hit whose distance from the offset is `effect` in the claimed direction."""
    sign = -1 if criterion.direction == "negative" else 1
    return float(np.clip(sample.offset + sign * effect, 0.0, 1.0))


def p_by_count(sample: Proportion, criterion: Criterion, num_policies: int) -> np.ndarray:
    """Return the p-value of each possible count among the trials of `num_policies` initial policies."""
    trials = round(num_policies * sample.trials / max(sample.num_policies, 1))
    made: list[Sample] = [Proportion(k, trials, sample.offset, num_policies) for k in range(trials + 1)]
    return np.array([p_supported(each, criterion) for each in made])
