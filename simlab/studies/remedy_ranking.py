"""Ranking of remedies: the share of the loss that each recovers, and which pairs of arms differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import pandas as pd

from simlab.core.results import Results
from simlab.studies.arms import Arm
from simlab.studies.contrasts import Share, ShareDifference, by_policy, by_run
from simlab.studies.estimands import Estimand, Frame, Tables, Views
from simlab.studies.records import Trial
from simlab.studies.registration import LOOKS
from simlab.studies.samples import RatioOfMeans, mean_of_policies
from simlab.studies.sequential import Looks
from simlab.studies.statistics import holm
from simlab.studies.verdicts import ALPHA, CriterionVerdict, criterion_verdict

MARGIN = 0.2
"""A fifth of the loss: the smallest share that counts."""
MIN_LOSS = 0.1
"""Least difference between the control and the untreated arm, in reward, that leaves something to recover."""
READ_AT = Looks(LOOKS)


@dataclass(frozen=True)
class Recovered:
    """The share of the loss that `arm` recovers; `p` is that of a share that is not above the margin.

    The interval has the `level` of look and family. Where that one has no end on either side it has 95%, and
    the verdict is inconclusive, as it is before the first look that may decide.
    """

    arm: str
    share: float
    ci_low: float
    ci_high: float
    level: float
    p: float
    verdict: CriterionVerdict
    policies: int
    sample: RatioOfMeans


@dataclass(frozen=True)
class Leaderboard:
    """The arms of a study on remedies.

    Args:
        rewards: final reward of each arm (column) by initial policy (row).
        recovered: the share of the loss that each remedy recovers, the largest first.
    """

    rewards: Frame
    recovered: list[Recovered]

    @cached_property
    def pairs(self) -> Frame:
        """Every pair of arms with its difference and significance."""
        return compare_pairs(self.rewards)


def read_leaderboard(results: Results | Tables, trial: Trial) -> Leaderboard:
    """Return the leaderboard of stored runs.

    The primary criterion of `trial` names estimand, untreated arm and control. A remedy is any other arm with
    the inference engine of the untreated one.
    """
    views, contrast, estimand = Views(results), trial.primary.contrast, trial.primary.estimand
    assert isinstance(contrast, ShareDifference)
    assert isinstance(estimand, Estimand)
    engines = results.table("runs").drop_duplicates("arm").set_index("arm")["infer_engine"]
    arms = [Arm(str(id)) for id in engines.index]
    sampler = engines.get(contrast.untreated.id)
    remedies = [arm for arm in arms if engines[arm.id] == sampler and arm.id != contrast.untreated.id]
    rewards = final_rewards(views, estimand, arms)
    recovered = rank_remedies(views, estimand, remedies, contrast.untreated, contrast.control, len(remedies))
    return Leaderboard(rewards, recovered)


def rank_remedies(
    views: Views, estimand: Estimand, remedies: Sequence[Arm], untreated: Arm, control: Arm, family: int
) -> list[Recovered]:
    """Return the share of the loss that each remedy recovers, the largest first.

    One row per remedy whose interval has an end; none where the control leads by at most `MIN_LOSS`. Levels
    are divided by `family`, the number of remedies that are tested together (Bonferroni).
    """
    samples = {arm.id: Share(arm, untreated, control).measure(views, estimand) for arm in remedies}
    rows = [
        row
        for arm, sample in samples.items()
        if isinstance(sample, RatioOfMeans) and (row := _measure_recovery(arm, sample, family))
    ]
    return sorted(rows, key=lambda row: -row.share)


def final_rewards(views: Views, estimand: Estimand, arms: Sequence[Arm]) -> Frame:
    """Return the reward of each arm (column) by initial policy (row); NaN where it was not run."""
    return pd.DataFrame(
        {arm.id: by_policy(by_run(views, estimand, [arm])[arm.id]) for arm in arms}
    ).sort_index()


def compare_pairs(finals: Frame) -> Frame:
    """Return every pair of arms with its mean difference, p-value and significance.

    The p-value of a pair is two-sided, over the initial policies that both arms have; `adjusted_p` is
    corrected for looks and for the number of pairs (Holm).
    """
    rows = [_compare_pair(finals, arm, other) for arm, other in combinations(finals.columns, 2)]
    table = pd.DataFrame(rows, columns=["arm", "other", "difference", "policies", "p"])
    overall = [READ_AT.overall(p, n) for p, n in zip(table["p"], table["policies"], strict=True)]
    table["adjusted_p"] = holm(overall) if len(table) else []
    return table.assign(significant=(table["adjusted_p"] <= ALPHA) & table["policies"].map(READ_AT.decides))


def _measure_recovery(arm: str, sample: RatioOfMeans, family: int) -> Recovered | None:
    lead = mean_of_policies(np.asarray(sample.denominator))
    if lead.num_policies < 3 or lead.interval(ALPHA)[0] <= MIN_LOSS:
        return None
    alpha = READ_AT.nominal(ALPHA / family, sample.num_policies)
    ends = sample.interval(alpha)
    decides = READ_AT.decides(sample.num_policies)
    verdict = criterion_verdict(ends, "positive", MARGIN) if decides else "inconclusive"
    if not np.isfinite(ends).any():
        alpha, ends = ALPHA, sample.interval(ALPHA)
    if not np.isfinite(ends).any():
        return None
    p = sample.p_beyond(MARGIN, 1)
    return Recovered(arm, sample.estimate, *ends, 1 - alpha, p, verdict, sample.num_policies, sample)


def _compare_pair(finals: Frame, arm: str, other: str) -> tuple[str, str, float, int, float]:
    difference = np.asarray((finals[arm] - finals[other]).dropna(), float)
    sample = mean_of_policies(difference)
    p = min(sample.p_beyond(0.0, 1), sample.p_beyond(0.0, -1))
    return arm, other, sample.estimate, len(difference), p
