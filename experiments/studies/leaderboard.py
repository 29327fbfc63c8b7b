"""All remedies against one dose of mismatch, at one budget, ranked: long responses, the dose of *acrl*.

Those of dense models; `leaderboard_experts` has those of experts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments import campaign
from experiments.campaign import (
    ACRL,
    CISPO,
    CLIPS,
    COPIED,
    EXACT,
    FP16,
    GSPO,
    GSPO_TIS,
    HEAD,
    ICEPOP,
    MIS,
    SEQ_MIS,
    SEQ_TIS,
    SLOW,
    TIS,
    TIS5,
    halved,
    long,
)
from experiments.dynamics_study.earlier import same_arms
from experiments.dynamics_study.runs import collect
from experiments.dynamics_study.stages import SEEDS, level_of, singly, staged, whole
from experiments.papers.shared import TWO_ANSWERS
from experiments.papers.vexact import LEADERBOARD_MARGIN, LEADERBOARD_RULE, V6
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results
from simlab.studies import Evidence, Interval
from simlab.studies import estimands as m
from simlab.studies.records import minus, primary
from simlab.studies.verdicts import effect

CORRECTED = (TIS, TIS5, MIS, SEQ_TIS, SEQ_MIS, ICEPOP, ACRL, CISPO, GSPO, GSPO_TIS, CLIPS[0.28], COPIED)
REMEDIES = (EXACT, FP16, HEAD, SLOW, halved(campaign.NONE), *CORRECTED)
Ranking = list[tuple[str, Interval]]
"""Remedies and what each changes, the best first."""


@dataclass(frozen=True)
class Contest:
    """Remedies of one model, whose arms are `named`, beside its BF16 control and no correction."""

    named: Callable[[str], str]
    remedies: tuple[str, ...]

    def run(self, run: Run) -> None:
        """Make the stages; in the smoke mode two remedies."""
        compared = (campaign.NONE, TIS, GSPO) if run.smoke else (campaign.NONE, campaign.BF16, *self.remedies)
        arms = tuple(map(self.named, compared))

        def undecided(tables: m.Tables) -> Sequence[str]:
            first = self.ranked(m.Views(tables).until(SEEDS[0]))
            return arms if _verdict(first) == "inconclusive" else ()

        staged(run, arms, undecided, collect, singly)

    def ranking(self, results: Results | m.Tables) -> Ranking:
        """Return remedies with their reward less that without, the best first, at the last stage."""
        return self.ranked(m.Views(results))

    def ranked(self, views: m.Views) -> Ranking:
        """Return the same of these runs."""
        none = self.named(campaign.NONE)
        present = [arm for arm in map(self.named, self.remedies) if arm in views.arms]
        views = whole(views, [none, *present])
        level = 1 - (1 - level_of(views, none)) / len(present)
        criteria = {
            arm: primary(m.REWARD, minus(arm, none), "positive", LEADERBOARD_MARGIN, because=TWO_ANSWERS)
            for arm in present
        }
        found = {arm: effect(views, criterion, level) for arm, criterion in criteria.items()}
        known = [(arm, interval) for arm, interval in found.items() if interval is not None]
        return sorted(known, key=lambda row: -row[1].effect)

    def collect_evidence(self, results: Results) -> list[Evidence]:
        """Return the finding of V6, with the remedy that changes most."""
        rows = self.ranking(results)
        note = ", ".join(f"{name} {interval.effect:+.3f}" for name, interval in rows)
        shown, interval = max(certain(rows), key=lambda row: abs(row[1].effect), default=rows[0])
        unit = f"reward, last quarter: {shown} minus {self.named(campaign.NONE)}"
        return [Evidence.of(V6.id, _verdict(rows), interval, unit=unit, rule=LEADERBOARD_RULE, note=note)]


def certain(rows: Ranking) -> Ranking:
    """Return the rows whose interval lies above zero or below it."""
    return [row for row in rows if row[1].low > 0 or row[1].high < 0]


def _verdict(rows: Ranking) -> str:
    effects = [interval.effect for _, interval in certain(rows)] + [0.0]
    inside = all(max(abs(i.low), abs(i.high)) <= LEADERBOARD_MARGIN for _, i in rows)
    return "reproduced" if np.ptp(effects) > LEADERBOARD_MARGIN else "no effect" if inside else "inconclusive"


DENSE = Contest(long, REMEDIES)
EXPERIMENT = Experiment(
    name="leaderboard",
    question="Which remedy keeps the most reward under one and the same mismatch?",
    decision_rule=LEADERBOARD_RULE,
    run=DENSE.run,
    minutes=60.0,
    claims=(V6.id,),
    figures=("leaderboard",),
    collect_evidence=DENSE.collect_evidence,
    goes_on=same_arms,
)
