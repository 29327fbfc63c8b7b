"""The number of seeds needed to detect an effect, from pilot runs: t-tests, noncentral t distribution."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Power:
    """Result: `seeds` per arm detect `effect` with probability `power` at level `alpha`.

    `std` is the standard deviation that was assumed: of a run in its arm, or of a difference of pairs.
    """

    seeds: int
    power: float
    effect: float
    std: float
    alpha: float
    paired: bool


def seeds_needed(
    effect: float,
    pilot: ArrayLike,
    other: ArrayLike | None = None,
    *,
    paired: bool = False,
    power: float = 0.8,
    alpha: float = 0.05,
    confidence: float = 0.5,
) -> Power:
    """Return the fewest seeds per arm with which a two-sided t-test finds a difference of means.

    Args:
        effect: the difference, above 0, in the unit of the pilot.
        pilot: one number per run of one arm, such as the final reward.
        other: the same of another arm; may be left out.
        paired: whether `pilot` and `other` are runs of the same seeds, compared seed by seed.
        power: probability of finding the difference.
        alpha: two-sided error of the test.
        confidence: above 0.5 it plans with an upper bound of the std of a small pilot, such as 0.8 for
            three or four runs.

    Raises:
        ValueError: for pilots that give no std, and effects that would need over 10,000 seeds.
    """
    if not effect > 0 or not 0 < power < 1 or not 0 < alpha < 1 or not 0.5 <= confidence < 1:
        raise ValueError(
            f"effect {effect}, power {power}, alpha {alpha}, confidence {confidence}; "
            "allowed: an effect above 0, probabilities between 0 and 1, confidence of at least 0.5"
        )
    std, freedom = _spread(pilot, other, paired)
    if confidence > 0.5:
        std *= float(np.sqrt(freedom / stats.chi2.ppf(1 - confidence, freedom)))

    def compute_power(seeds: int) -> float:
        return power_of(seeds, effect, std, paired=paired, alpha=alpha)

    if compute_power(MOST_SEEDS) < power:
        raise ValueError(f"an effect of {effect} at a std of {std:g} needs over {MOST_SEEDS} seeds")
    seeds = bisect_left(range(MOST_SEEDS), power, key=compute_power)
    return Power(seeds, compute_power(seeds), effect, std, alpha, paired)


def power_of(seeds: int, effect: float, std: float, *, paired: bool = False, alpha: float = 0.05) -> float:
    """Return the probability that a two-sided t-test with `seeds` runs per arm detects `effect`.

    `std` is the standard deviation of a run, or with `paired` of a difference. Below two seeds it is 0.
    """
    if seeds < 2:
        return 0.0
    if std == 0:
        return 1.0
    freedom = seeds - 1 if paired else 2 * (seeds - 1)
    shift = effect / std * np.sqrt(seeds if paired else seeds / 2)
    bound = stats.t.ppf(1 - alpha / 2, freedom)
    power = stats.nct.sf(bound, freedom, shift) + stats.nct.cdf(-bound, freedom, shift)
    # Far out in the tail the noncentral t is not computed; with that many seeds it is normal.
    return float(power if np.isfinite(power) else stats.norm.sf(bound - shift))


def _spread(pilot: ArrayLike, other: ArrayLike | None, paired: bool) -> tuple[float, int]:
    """Return the standard deviation and its degrees of freedom."""
    arms: Sequence[np.ndarray] = [np.asarray(arm, float) for arm in (pilot, other) if arm is not None]
    if paired:
        if len(arms) < 2 or len(arms[0]) != len(arms[1]):
            raise ValueError(
                f"paired pilots need two arms of the same seeds; these have {[*map(len, arms)]} runs"
            )
        arms = [arms[0] - arms[1]]
    if any(len(arm) < 2 or not np.isfinite(arm).all() for arm in arms):
        raise ValueError(f"a pilot needs at least 2 runs, all finite; these have {[*map(len, arms)]}")
    freedom = sum(len(arm) - 1 for arm in arms)
    total = sum(float(((arm - arm.mean()) ** 2).sum()) for arm in arms)
    return float(np.sqrt(total / freedom)), freedom
