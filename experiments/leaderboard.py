"""All remedies against one dose of mismatch, at one budget, ranked: long responses, the dose of *acrl*."""

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
from experiments.dynamics_study import measures as m
from experiments.dynamics_study.rules import Part, effect, minus
from experiments.dynamics_study.runs import collect
from experiments.dynamics_study.stages import POWER, level_of, staged
from simlab.claims import Finding, Interval
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results

NONE, BF16 = long(campaign.NONE), long(campaign.BF16)
CORRECTED = (TIS, TIS5, MIS, SEQ_TIS, SEQ_MIS, ICEPOP, ACRL, CISPO, GSPO, GSPO_TIS, CLIPS[0.28], COPIED)
REMEDIES = tuple(map(long, (EXACT, FP16, HEAD, SLOW, halved(campaign.NONE), *CORRECTED)))
MARGIN = 0.02
RULE = (
    f"{POWER}V6: each remedy's reward in the last quarter less that without correction, with simultaneous "
    "intervals (Bonferroni over the remedies; BF16 is shown beside them). Reproduced if an interval lies "
    "above zero or below it and the best and the worst remedy of this kind, none counted as zero, differ by "
    f"more than {MARGIN}; no effect if all intervals lie within it; else inconclusive."
)

Ranking = list[tuple[str, Interval]]
"""Remedies and what each changes, the best first."""


def run(run: Run) -> None:
    arms = (NONE, long(TIS), long(GSPO)) if run.smoke else (NONE, BF16, *REMEDIES)
    staged(run, arms, lambda tables: arms if _verdict(ranking(tables)) == "inconclusive" else (), collect)


def ranking(results: Results | m.Tables) -> Ranking:
    """Return remedies with their reward less that without correction, the best first, at the last stage."""
    views = m.Views(results)
    present = [name for name in REMEDIES if name in views.arms]
    level = 1 - (1 - level_of(views, NONE)) / len(present)
    parts = {name: Part(m.REWARD, minus(name, NONE), "positive", MARGIN) for name in present}
    found = {name: effect(views, part, level) for name, part in parts.items()}
    known = [(name, interval) for name, interval in found.items() if interval is not None]
    return sorted(known, key=lambda row: -row[1].effect)


def certain(rows: Ranking) -> Ranking:
    """Return the rows whose interval lies above zero or below it."""
    return [row for row in rows if row[1].low > 0 or row[1].high < 0]


def _verdict(rows: Ranking) -> str:
    effects = [interval.effect for _, interval in certain(rows)] + [0.0]
    inside = all(max(abs(i.low), abs(i.high)) <= MARGIN for _, i in rows)
    return "reproduced" if np.ptp(effects) > MARGIN else "no effect" if inside else "inconclusive"


def decide(results: Results) -> list[Finding]:
    rows = ranking(results)
    note = ", ".join(f"{name} {interval.effect:+.3f}" for name, interval in rows)
    shown, interval = max(certain(rows), key=lambda row: abs(row[1].effect), default=rows[0])
    unit = f"reward, last quarter: {shown} minus {NONE}"
    return [Finding.of("V6", _verdict(rows), interval, unit=unit, rule=RULE, note=note)]


EXPERIMENT = Experiment(
    name="leaderboard",
    question="Which remedy keeps the most reward under one and the same mismatch?",
    decision_rule=RULE,
    run=run,
    minutes=60.0,
    claims=("V6",),
    figures=("leaderboard",),
    decide=decide,
)
