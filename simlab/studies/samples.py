"""Samples of a criterion: an estimate, its interval at any level, and tests against a margin.

A sample holds one value per initial policy; seeds of a policy were averaged before. `p_beyond` is twice the
one-sided p-value, so that it is at most alpha where the interval of level 1 - alpha lies beyond the bound.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from scipy import optimize, stats

from simlab.studies.sign_flips import flip_p

Side = Literal[1, -1]
Ends = tuple[float, float]
EQUAL = 1e-12
"""A relative spread of values that is round-off."""
STRETCH = 64
"""Doublings after which the end of an interval is called unbounded."""


class Sample(Protocol):
    """An estimate with an interval and tests."""

    @property
    def estimate(self) -> float:
        """The estimate; between the ends of every interval."""
        ...

    @property
    def num_policies(self) -> int:
        """Number of independent units; 0 without sampling."""
        ...

    def interval(self, alpha: float) -> Ends:
        """Return the ends of the interval of level 1 - `alpha`; infinite where the data give no bound."""
        ...

    def p_beyond(self, bound: float, side: Side) -> float:
        """Return twice the p-value of a truth that is not above (1) or below (-1) `bound`."""
        ...


@dataclass(frozen=True)
class RatioOfMeans:
    """The mean of `numerator` over that of `denominator` [n]; a plain mean where the latter is None.

    A bound b is tested on the contrasts numerator - b denominator: by Student's t, by the same corrected for
    skewness, and by sign flips, which must agree. The correction uses the skewness of the contrasts at the
    estimate for all bounds. The denominator must have a sign by the same tests, or there is no interval.
    The interval contains the bounds that one of the three accepts, so it is Fieller's interval, widened
    where the others need it. Sign flips of n policies have no p-value below 2 / 2^n: at a smaller alpha the
    interval is unbounded.

    Reference: Fieller 1954; Hall 1992.
    Deviation: Fieller's interval is united with those that invert the other tests.
    """

    numerator: np.ndarray
    denominator: np.ndarray | None = None

    @cached_property
    def _scale(self) -> np.ndarray:
        return np.ones_like(self.numerator) if self.denominator is None else self.denominator

    @cached_property
    def _sign(self) -> float:
        return -1.0 if self._scale.mean() < 0 else 1.0

    @property
    def num_policies(self) -> int:
        """Number of initial policies."""
        return len(self.numerator)

    @property
    def estimate(self) -> float:
        """The ratio of the means; NaN if the denominator is zero."""
        below = float(self._scale.mean())
        return float(self.numerator.mean()) / below if below else float("nan")

    def contrasts(self, bound: float) -> np.ndarray:
        """Return the contrasts whose mean is positive where the ratio is above `bound`."""
        return self._sign * (self.numerator - bound * self._scale)

    @cached_property
    def skewness(self) -> float:
        """Unbiased skewness of the contrasts at the estimate; 0 of fewer than three or of equal ones."""
        return float(skewness(self.contrasts(self.estimate)))

    def p_beyond(self, bound: float, side: Side) -> float:
        """Return the largest p-value of the three tests.

        A ratio has no sign unless its denominator has one, so that is tested as well. With n policies it is
        at least 2 / 2^n.
        """
        values, below = side * self.contrasts(bound), self._sign * self._scale
        t_tests = 2 * float(either_t_p(values, side * self.skewness))
        return min(1.0, max(t_tests, flip_p(values), self._t_without_sign, flip_p(below)))

    @cached_property
    def _t_without_sign(self) -> float:
        """Twice the larger p-value of both t-tests of a denominator whose mean is zero."""
        values = self._sign * self._scale
        return 2 * float(either_t_p(values, skewness(values)))

    def interval(self, alpha: float) -> Ends:
        """Return the bounds that at least one of the three tests accepts at level `alpha`."""
        if self._t_without_sign > alpha or flip_p(self._sign * self._scale) > alpha:
            return -np.inf, np.inf
        reaches = (needed_t(alpha, self.num_policies, side * self.skewness) for side in (1, -1))
        low, high = (self._fieller_ends(t)[end] for end, t in enumerate(reaches))

        def rejects(bound: float, side: Side) -> bool:
            return flip_p(side * self.contrasts(bound)) <= alpha

        return _widen(low, 1, rejects, self.estimate - low), _widen(high, -1, rejects, high - self.estimate)

    def _fieller_ends(self, t: float) -> Ends:
        """Return the bounds at which the t-statistic of the contrasts is `t` and -`t`."""
        a, b, n = self.numerator, self._scale, self.num_policies
        t2 = t**2 / n
        (aa, ab), (_, bb) = np.atleast_2d(np.cov(a, b)) if self.denominator is not None else _plain(a)
        square, cross = b.mean() ** 2 - t2 * bb, a.mean() * b.mean() - t2 * ab
        if not square > 0:
            return -np.inf, np.inf
        reach = np.sqrt(max(cross**2 - square * (a.mean() ** 2 - t2 * aa), 0.0)) / square
        return float(cross / square - reach), float(cross / square + reach)


def mean_of_policies(values: np.ndarray) -> RatioOfMeans:
    """Return the sample of the mean of one contrast per initial policy [n]."""
    return RatioOfMeans(np.asarray(values, float))


@dataclass(frozen=True)
class Proportion:
    """`count` of `num_policies` initial policies, less `offset`; with the exact binomial interval.

    With `offset` 1/2 and the discordant pairs alone it is McNemar's test; of pairs in which one run collapses
    first it is the log-rank test stratified by policy. `trials` is then the number of discordant
    pairs.

    Reference: Clopper & Pearson 1934; McNemar 1947.
    """

    count: int
    trials: int
    offset: float = 0.0
    num_policies: int = 0

    @property
    def estimate(self) -> float:
        """The share less the offset; zero without any trial."""
        return self.count / self.trials - self.offset if self.trials else 0.5 - self.offset

    def interval(self, alpha: float) -> Ends:
        """Return the Clopper-Pearson interval, less the offset."""
        k, n = self.count, self.trials
        low = 0.0 if k == 0 else float(stats.beta.ppf(alpha / 2, k, n - k + 1))
        high = 1.0 if k == n else float(stats.beta.ppf(1 - alpha / 2, k + 1, n - k))
        return low - self.offset, high - self.offset

    def p_beyond(self, bound: float, side: Side) -> float:
        """Return twice the binomial tail."""
        fraction, k, n = bound + self.offset, self.count, self.trials
        if not 0 <= fraction <= 1:
            return 0.0 if (fraction < 0) == (side > 0) else 1.0
        tail = stats.binom.sf(k - 1, n, fraction) if side > 0 else stats.binom.cdf(k, n, fraction)
        return min(1.0, 2 * float(tail))


@dataclass(frozen=True)
class Exact:
    """A number without sampling error."""

    estimate: float
    num_policies: int = 0

    def interval(self, alpha: float) -> Ends:  # noqa: ARG002
        """Return the number twice."""
        return self.estimate, self.estimate

    def p_beyond(self, bound: float, side: Side) -> float:
        """Return 0 if the number is beyond `bound`, else 1."""
        return 0.0 if side * (self.estimate - bound) > 0 else 1.0


@dataclass(frozen=True)
class StoredInterval:
    """An interval of level 1 - `alpha` from a stored table; its ends are taken as those of a normal one."""

    estimate: float
    low: float
    high: float
    alpha: float = 0.05
    num_policies: int = 0

    def interval(self, alpha: float) -> Ends:
        """Return the stored interval, its halves scaled to another level."""
        scale = stats.norm.isf(alpha / 2) / stats.norm.isf(self.alpha / 2)
        return (
            self.estimate - float(scale) * (self.estimate - self.low),
            self.estimate + float(scale) * (self.high - self.estimate),
        )

    def p_beyond(self, bound: float, side: Side) -> float:
        """Return the p-value that the stored interval implies (Altman & Bland 2011)."""
        half = self.estimate - self.low if side > 0 else self.high - self.estimate
        distance = side * (self.estimate - bound)
        if half == 0:
            return 0.0 if distance > 0 else 1.0
        return min(1.0, 2 * float(stats.norm.sf(distance / half * stats.norm.isf(self.alpha / 2))))


def ratio_t_p(numerator: np.ndarray, denominator: np.ndarray, bound: float, side: Side) -> np.ndarray:
    """Return twice the larger p-value [...] of both t-tests of ratios of means over [..., n].

    They test that the ratio does not exceed `bound` (`side` 1), or does not fall below it (-1).
    """
    below = denominator.mean(-1, keepdims=True)
    sign = np.where(below < 0, -1.0, 1.0)
    estimate = np.divide(
        numerator.mean(-1, keepdims=True), below, out=np.full_like(below, np.nan), where=below != 0
    )
    skew = skewness(sign * (numerator - estimate * denominator))
    ratio = either_t_p(side * sign * (numerator - bound * denominator), side * skew)
    return 2 * np.maximum(ratio, either_t_p(sign * denominator, skewness(sign * denominator)))


def either_t_p(values: np.ndarray, skew: np.ndarray | float) -> np.ndarray:
    """Return the larger one-sided p-value [...] of Student's t-test and of the one corrected for `skew`."""
    return np.maximum(t_p(values), skewed_t_p(values, skew))


def t_p(values: np.ndarray) -> np.ndarray:
    """Return the one-sided p-values [...] of Student's t-test of means of `values` [..., n] above zero."""
    return stats.t.sf(_t_statistic(values), values.shape[-1] - 1)


def skewed_t_p(values: np.ndarray, skew: np.ndarray | float) -> np.ndarray:
    """Return the one-sided p-values [...] of a t-test of means above zero, corrected for skewness.

    `skew` [...] is the skewness of `values` [..., n]. Where a few of them lie far below the others, Student's
    t rejects too often.

    Reference: Hall 1992, J. R. Stat. Soc. B 54, 221 (the cubic transformation, increasing in t).
    """
    count, t = values.shape[-1], _t_statistic(values)
    small, finite = np.asarray(skew) / np.sqrt(count), np.where(np.isfinite(t), t, 0.0)
    corrected = finite + small * finite**2 / 3 + small**2 * finite**3 / 27 + small / 6
    return stats.t.sf(np.where(np.isfinite(t), corrected, t), count - 1)


def needed_t(alpha: float, count: int, skew: float) -> float:
    """Return the t-statistic of `count` values above which both t-tests reject at two-sided level `alpha`.

    Reference: Hall 1992 (the inverse of the cubic transformation).
    """
    plain, small = float(stats.t.isf(alpha / 2, count - 1)), skew / np.sqrt(count)
    # 3 / small (root - 1), without the cancellation at a small skewness.
    root = float(np.cbrt(1 + small * (plain - small / 6)))
    return max(plain, 3 * (plain - small / 6) / (root**2 + root + 1))


def skewness(values: np.ndarray) -> np.ndarray:
    """Return the unbiased skewness [...] of values [..., n]; 0 of fewer than three or of equal ones."""
    count = values.shape[-1]
    if count < 3:
        return np.zeros(values.shape[:-1])
    mean, std = values.mean(-1, keepdims=True), values.std(-1, ddof=1)
    cubes, varies = ((values - mean) ** 3).sum(-1), std > EQUAL * np.abs(values).max(-1)
    return np.where(varies, count * cubes / np.where(varies, std, 1) ** 3, 0) / ((count - 1) * (count - 2))


def _t_statistic(values: np.ndarray) -> np.ndarray:
    """Return mean over standard error [...] of values [..., n]; infinite where they are equal."""
    mean, error = values.mean(-1), values.std(-1, ddof=1) / np.sqrt(values.shape[-1])
    varies = error > EQUAL * np.abs(mean)
    return np.where(varies, mean, np.where(mean > 0, np.inf, -np.inf)) / np.where(varies, error, 1.0)


def _plain(values: np.ndarray) -> np.ndarray:
    return np.array([[values.var(ddof=1), 0.0], [0.0, 0.0]])


def _widen(end: float, side: Side, rejects: Callable[[float, Side], bool], width: float) -> float:
    """Return the end that sign flips reject too, at or outside `end`, `width` away from the estimate."""
    if not np.isfinite(end) or rejects(end, side):
        return end
    step = width / 2 or abs(end) * 1e-9 or 1e-9
    inside = end
    for _ in range(STRETCH):
        outside = inside - side * step
        if rejects(outside, side):
            return float(
                optimize.bisect(
                    lambda x: 0.5 - rejects(float(x), side), *sorted((inside, outside)), xtol=step * 1e-4
                )  # pyright: ignore[reportArgumentType]
            )
        inside, step = outside, 2 * step
    return -side * np.inf
