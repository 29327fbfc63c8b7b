"""Leaderboards of dense and of MoE models: all remedies at one noise level and one budget, ranked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.arms import (
    ACRL,
    ALL_ARMS,
    BF16,
    BYPASS,
    CISPO,
    CLIPS,
    EXACT,
    FP16,
    GSPO,
    GSPO_TIS,
    HEAD,
    ICEPOP,
    MIS,
    NONE,
    R2,
    R3,
    ROUTER,
    SEQ_MIS,
    SEQ_TIS,
    SLOW,
    TIS,
    TIS5,
    chain_arm,
    halving_arm,
    moe_arm,
)  # fmt: skip
from experiments.papers.shared import TWO_ANSWERS
from experiments.papers.vexact import LEADERBOARD_MARGIN, LEADERBOARD_RULE, V6
from experiments.regimes import BASE
from experiments.studies.resume import check_arms
from experiments.studies.runs import run_arms
from experiments.studies.stages import (
    SEEDS,
    common_stage,
    confidence_level,
    one_part_per_arm,
    run_stages,
)  # fmt: skip
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results
from simlab.studies import Evidence, Interval
from simlab.studies import estimands as m
from simlab.studies.design import Design
from simlab.studies.records import minus, primary
from simlab.studies.verdicts import effect

CORRECTED = (TIS, TIS5, MIS, SEQ_TIS, SEQ_MIS, ICEPOP, ACRL, CISPO, GSPO, GSPO_TIS, CLIPS[0.28], BYPASS)
REMEDIES = (EXACT, FP16, HEAD, SLOW, halving_arm(NONE), *CORRECTED)
Ranking = list[tuple[str, Interval]]
"""Remedies and their effects, the best first."""


@dataclass(frozen=True)
class Contest:
    """The remedies of one model; `named` returns the name of its arm."""

    named: Callable[[str], str]
    remedies: tuple[str, ...]

    def run(self, run: Run) -> None:
        """Run the stages; in smoke mode two remedies."""
        compared = (NONE, TIS, GSPO) if run.smoke else (NONE, BF16, *self.remedies)
        arms = tuple(map(self.named, compared))

        def list_undecided(tables: m.Tables) -> Sequence[str]:
            first = self.ranked(m.Views(tables).until(SEEDS[0]))
            return arms if _verdict(first) == "inconclusive" else ()

        run_stages(run, arms, list_undecided, run_arms, one_part_per_arm)

    def ranking(self, results: Results | m.Tables) -> Ranking:
        """Return the remedies with their reward minus no correction, the best first, at the last stage."""
        return self.ranked(m.Views(results))

    def ranked(self, views: m.Views) -> Ranking:
        """Return the same of these runs."""
        none = self.named(NONE)
        present = [arm for arm in map(self.named, self.remedies) if arm in views.arms]
        views = common_stage(views, [none, *present])
        level = 1 - (1 - confidence_level(views, none)) / len(present)
        criteria = {
            arm: primary(m.REWARD, minus(arm, none), "positive", LEADERBOARD_MARGIN, because=TWO_ANSWERS)
            for arm in present
        }
        found = {arm: effect(views, criterion, level) for arm, criterion in criteria.items()}
        known = [(arm, interval) for arm, interval in found.items() if interval is not None]
        return sorted(known, key=lambda row: -row[1].effect)

    def collect_evidence(self, results: Results) -> list[Evidence]:
        """Return the evidence on V6, with the remedy of the largest effect."""
        rows = self.ranking(results)
        note = ", ".join(f"{name} {interval.effect:+.3f}" for name, interval in rows)
        shown, interval = max(beyond_zero(rows), key=lambda row: abs(row[1].effect), default=rows[0])
        unit = f"reward, last quarter: {shown} minus {self.named(NONE)}"
        return [Evidence.of(V6.id, _verdict(rows), interval, unit=unit, rule=LEADERBOARD_RULE, note=note)]


def beyond_zero(rows: Ranking) -> Ranking:
    """Return the rows whose interval lies above zero or below it."""
    return [row for row in rows if row[1].low > 0 or row[1].high < 0]


def _verdict(rows: Ranking) -> str:
    effects = [interval.effect for _, interval in beyond_zero(rows)] + [0.0]
    inside = all(max(abs(i.low), abs(i.high)) <= LEADERBOARD_MARGIN for _, i in rows)
    return "reproduced" if np.ptp(effects) > LEADERBOARD_MARGIN else "no effect" if inside else "inconclusive"


DENSE = Contest(chain_arm, REMEDIES)
MOE = Contest(moe_arm, (*REMEDIES, ROUTER, R2, R3))


def _experiment(name: str, question: str, contest: Contest, minutes: float) -> Experiment:
    arms = {arm: ALL_ARMS[arm] for arm in map(contest.named, (NONE, BF16, *contest.remedies))}
    return Experiment(
        name=name,
        question=question,
        decision_rule=LEADERBOARD_RULE,
        run=contest.run,
        minutes=minutes,
        claims=(V6.id,),
        figures=(name,),
        collect_evidence=contest.collect_evidence,
        check_resume=check_arms,
        design=Design(BASE, arms, contest.named(NONE), SEEDS),
    )


EXPERIMENT = _experiment("leaderboard", "Which remedy keeps the most reward at one mismatch?", DENSE, 60.0)
MOE_EXPERIMENT = _experiment(
    "leaderboard_experts", "Which remedy of an MoE keeps the most reward at one mismatch?", MOE, 290.0
)
