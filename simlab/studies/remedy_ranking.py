"""Ranking of remedies: the share of the loss that each recovers, and which pairs differ."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from string import ascii_lowercase

from simlab.studies.contrasts import Share, ShareDifference
from simlab.studies.estimands import Estimand, Views
from simlab.studies.samples import Side
from simlab.studies.statistics import holm, holm_levels
from simlab.studies.verdicts import ALPHA, CriterionVerdict, criterion_verdict

MARGIN = 0.2
"""A fifth of the loss: the smallest share that counts, recovered or between two remedies."""


@dataclass(frozen=True)
class Ranked:
    """A remedy: the share of the loss that it recovers, at the level at which Holm's method tested it.

    `adjusted_p` is of the hypothesis that the share does not exceed the margin. Remedies that share a letter
    in `letters` do not differ significantly by more than the margin.
    """

    remedy: str
    share: float
    ci_low: float
    ci_high: float
    alpha: float
    adjusted_p: float
    verdict: CriterionVerdict
    num_policies: int
    letters: str = ""


@dataclass(frozen=True)
class PairDifference:
    """Two remedies whose shares differ by more than the margin, or not, over all pairs by Holm's method."""

    better: str
    worse: str
    difference: float
    ci_low: float
    ci_high: float
    adjusted_p: float
    differs: bool


def rank(
    views: Views, estimand: Estimand, remedies: Sequence[str], untreated: str, control: str
) -> list[Ranked]:
    """Return the remedies that have been run, the largest recovered share first, with their letters."""
    samples = {
        arm: Share(arm, untreated, control).measure(views, estimand)
        for arm in remedies
        if {arm, untreated, control} <= set(views.arms)
    }
    known = {arm: sample for arm, sample in samples.items() if sample is not None}
    if not known:
        return []
    p_values = [sample.p_beyond(MARGIN, 1) for sample in known.values()]
    rows = []
    for (arm, sample), level, p in zip(
        known.items(), holm_levels(p_values, ALPHA), holm(p_values), strict=True
    ):
        ends = sample.interval(float(level))
        verdict = criterion_verdict(ends, "positive", MARGIN)
        rows.append(Ranked(arm, sample.estimate, *ends, float(level), float(p), verdict, sample.num_policies))
    rows.sort(key=lambda row: -row.share)
    order = [row.remedy for row in rows]
    letters = compact_letters(order, compare_pairs(views, estimand, order, untreated, control))
    return [replace(row, letters=letters[row.remedy]) for row in rows]


def compare_pairs(
    views: Views, estimand: Estimand, remedies: Sequence[str], untreated: str, control: str
) -> list[PairDifference]:
    """Return every pair of remedies with the difference of their recovered shares, by Holm's method."""
    found = []
    for one, other in combinations(remedies, 2):
        sample = ShareDifference(one, other, untreated, control).measure(views, estimand)
        if sample is not None:
            side: Side = 1 if sample.estimate >= 0 else -1
            found.append((one, other, sample, side, sample.p_beyond(side * MARGIN, side)))
    p_values = [each[-1] for each in found]  # two-sided, so the side may be that of the estimate
    rows = []
    for (one, other, sample, side, _), level, p in zip(
        found, holm_levels(p_values, ALPHA), holm(p_values), strict=True
    ):
        low, high = sample.interval(float(level))
        better, worse = (one, other) if side > 0 else (other, one)
        ends = (low, high) if side > 0 else (-high, -low)
        rows.append(
            PairDifference(better, worse, abs(sample.estimate), *ends, float(p), bool(ends[0] > MARGIN))
        )
    return rows


def compact_letters(order: Sequence[str], pairs: Sequence[PairDifference]) -> dict[str, str]:
    """Return the letters of each remedy: two that share a letter do not differ.

    Reference: Piepho 2004 (insert and absorb).
    """
    columns: list[set[str]] = [set(order)]
    for pair in pairs:
        if not pair.differs:
            continue
        split = [
            column - {name}
            for column in columns
            if {pair.better, pair.worse} <= column
            for name in (pair.better, pair.worse)
        ]
        kept = [column for column in columns if not {pair.better, pair.worse} <= column]
        merged = [*kept, *split]
        columns = [
            column
            for index, column in enumerate(merged)
            if not any(column < other or (column == other and index > at) for at, other in enumerate(merged))
        ]
    columns.sort(key=lambda column: [name not in column for name in order])
    return {
        name: "".join(letter for letter, column in zip(_letters(), columns, strict=False) if name in column)
        for name in order
    }


def _letters() -> list[str]:
    return [*ascii_lowercase, *(2 * letter for letter in ascii_lowercase)]
