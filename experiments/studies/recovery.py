"""The share of the loss that a remedy recovers: a ratio of means over initial policies, and its verdict."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from simlab.studies.estimands import REWARD, Estimand, View, Views
from simlab.studies.sequential import stopping_levels
from simlab.studies.statistics import Interval, holm

MARGIN = 0.2
LOSS = 0.1
"""Least difference between the control and no correction, in reward, that leaves something to recover."""
LOOKS = (8, 16, 24)
"""Initial policies at each analysis."""
ALPHAS = tuple(map(float, 1 - stopping_levels(len(LOOKS))))
"""Two-sided error of each analysis, 5% over all (O'Brien & Fleming). A sign-flip test of 8 policies cannot
reach the first, so that look can only show futility."""
PREMISE_LEVEL = 0.95
SIDES = ("held_out_infer", "held_out_train")


@dataclass(frozen=True)
class Recovery:
    """The share of the loss that an arm recovers; `p` of the sign-flip test of the margin.

    `verdict` is that of the criterion. The interval has the `level` of look and family; where that one is
    unbounded it has the level of the premise and the verdict is inconclusive.
    """

    arm: str
    share: Interval
    level: float
    p: float
    verdict: str


def _final_reward(view: View) -> float:
    rows = view.mean_diagnostics(late=True)
    if not len(rows) or any(side not in rows for side in SIDES):
        return REWARD(view)
    return float(rows[list(SIDES)].to_numpy(float).mean())


FINAL_REWARD = Estimand(
    "held-out reward, mean of both engines, last quarter (sampled reward if not recorded)", _final_reward
)


def recovered_shares(
    views: Views, arms: Sequence[str], none: str, control: str, family: int, minus: str | None = None
) -> list[Recovery]:
    """Return the share of the loss that each of `arms` recovers, at the Bonferroni level of `family` tests.

    Args:
        views: the runs.
        arms: the remedies.
        none: the arm without a remedy.
        control: the arm without injected noise.
        family: number of remedies that are tested together.
        minus: an arm whose share is subtracted; default none.

    Returns:
        One row per arm with a bounded interval; none if the control has not lost more than `LOSS`.
    """
    rows = []
    for arm in arms:
        table = final_rewards(views, list(dict.fromkeys((arm, none, control, minus or none)))).dropna()
        finals, count = {name: table[name].to_numpy(float) for name in table}, len(table)
        loss = finals[control] - finals[none]
        if count < 3 or mean_interval(loss, PREMISE_LEVEL).low <= LOSS:
            continue
        gain, alpha = finals[arm] - finals[minus or none], alpha_of(count) / family
        share = fieller_interval(gain, loss, 1 - alpha)
        shown = share or fieller_interval(gain, loss, PREMISE_LEVEL)
        if shown is not None:
            p, verdict = _judge(gain, loss, share, alpha)
            level = PREMISE_LEVEL if share is None else 1 - alpha
            rows.append(Recovery(arm, shown, level, p, verdict))
    return rows


def final_rewards(views: Views, arms: Sequence[str]) -> pd.DataFrame:
    """Return the final reward of each arm (column) by initial policy (row); NaN where it was not run."""
    return pd.DataFrame({arm: _by_policy(views, arm) for arm in arms}).sort_index()


def compare_pairs(finals: pd.DataFrame) -> pd.DataFrame:
    """Return every pair of arms with its mean difference, Holm-adjusted p-value and significance.

    The p-value of a pair is the larger one of the paired t-test and the exact sign-flip test, two-sided,
    over the initial policies that both arms have; the level is that of the look which they have reached.
    """
    rows = []
    for arm, other in combinations(finals.columns, 2):
        difference = (finals[arm] - finals[other]).dropna().to_numpy(float)
        flips = 2 * min(sign_flip_p(difference), sign_flip_p(-difference))
        test: Any = stats.ttest_1samp(difference, 0.0)
        p = min(max(flips, float(test.pvalue)), 1.0) if np.ptp(difference) > 0 else 1.0
        row = {"arm": arm, "other": other, "difference": difference.mean(), "policies": len(difference)}
        rows.append(row | {"p": p, "alpha": alpha_of(len(difference))})
    table = pd.DataFrame(rows, columns=["arm", "other", "difference", "policies", "p", "alpha"])
    table["adjusted_p"] = holm(table["p"]) if len(table) else []
    return table.assign(significant=table["adjusted_p"] <= table["alpha"])


def alpha_of(policies: int) -> float:
    """Return the two-sided error of the last look that `policies` initial policies have reached."""
    return ALPHAS[max(sum(policies >= look for look in LOOKS) - 1, 0)]


def _judge(gain: np.ndarray, loss: np.ndarray, share: Interval | None, alpha: float) -> tuple[float, str]:
    """Return the p-value of the margin and the verdict of a criterion."""
    above, below = sign_flip_p(gain - MARGIN * loss), sign_flip_p(-gain - MARGIN * loss)
    if share is None:
        return above, "inconclusive"
    if share.low > MARGIN and above <= alpha / 2:
        return above, "supported"
    if share.high < -MARGIN and below <= alpha / 2:
        return above, "contradicted"
    return above, "negligible" if share.low >= -MARGIN and share.high <= MARGIN else "inconclusive"


def fieller_interval(above: np.ndarray, below: np.ndarray, level: float) -> Interval | None:
    """Return the ratio of the means of two paired samples [n]; None if its interval is unbounded.

    Reference: Fieller 1954.
    """
    n = len(above)
    ratio = float(above.mean() / below.mean())
    quantile = float(stats.t.ppf((1 + level) / 2, n - 1))
    covariance = np.cov(above, below, ddof=1) / n * quantile**2
    a = below.mean() ** 2 - covariance[1, 1]
    b = above.mean() * below.mean() - covariance[0, 1]
    c = above.mean() ** 2 - covariance[0, 0]
    if a <= 0:
        return None
    reach = float(np.sqrt(max(b * b - a * c, 0.0)))
    return Interval(ratio, float((b - reach) / a), float((b + reach) / a), n)


def mean_interval(values: np.ndarray, level: float) -> Interval:
    """Return the mean of a sample [n] with Student's interval."""
    n, effect = len(values), float(values.mean())
    reach = float(stats.t.ppf((1 + level) / 2, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return Interval(effect, effect - reach, effect + reach, n)


def sign_flip_p(values: np.ndarray) -> float:
    """Return the one-sided exact p-value of a positive mean of a sample [n] under flips of its signs.

    The 2^n sums are counted by meeting in the middle.
    """
    half = len(values) // 2
    left, right = (_flipped_sums(part) for part in (values[:half], values[half:]))
    right = np.sort(right)
    total, tolerance = values.sum(), 1e-12 * np.abs(values).sum()
    reached = len(right) - np.searchsorted(right, total - tolerance - left, side="left")
    return float(reached.sum() / (len(left) * len(right)))


def _flipped_sums(values: np.ndarray) -> np.ndarray:
    return np.array(list(product((-1.0, 1.0), repeat=len(values)))) @ values


def _by_policy(views: Views, arm: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for (policy, _), view in views.arms.get(arm, {}).items():
        values.setdefault(policy, []).append(FINAL_REWARD(view))
    return {policy: float(np.mean(each)) for policy, each in values.items()}


def registered_hash(rule: str) -> str:
    """Return the SHA-256 of a rule's text, which the manifest records before the answer is known."""
    return hashlib.sha256(rule.encode()).hexdigest()
