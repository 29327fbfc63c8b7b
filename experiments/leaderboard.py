"""All remedies against one dose of mismatch, at one budget, ranked, for a dense model and for experts."""

import numpy as np

from experiments.campaign import (
    ACRL,
    ALIKE,
    BF16,
    CLIPS,
    COPIED,
    EXACT,
    FP16,
    GSPO,
    HEAD,
    MIS,
    MOE,
    MOE_ACRL,
    MOE_BF16,
    NONE,
    R2,
    R3,
    ROUTER,
    SEQ_MIS,
    SEQ_TIS,
    SLOW,
    TIS,
)
from experiments.dynamics_study import measures as m
from experiments.dynamics_study.rules import Part, effect, minus
from experiments.dynamics_study.runs import collect
from experiments.dynamics_study.stages import POWER, level_of, staged
from simlab.claims import Finding, Interval
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results

MARGIN = 0.02
REMEDIES = (
    BF16,
    EXACT,
    TIS,
    MIS,
    SEQ_TIS,
    SEQ_MIS,
    ACRL,
    GSPO,
    CLIPS[0.28],
    SLOW,
    f"{NONE}, halving",
    FP16,
    HEAD,
    COPIED,
    "IcePop",
    "CISPO",
    "GSPO, token TIS",
)
OF_EXPERTS = (MOE_BF16, *ALIKE, MOE_ACRL, ROUTER, R2, R3)
BASELINE = dict.fromkeys(REMEDIES, NONE) | dict.fromkeys(OF_EXPERTS, MOE)
"""Remedy -> the arm of its model without any."""
CONTROLS = (BF16, MOE_BF16)
RULE = (
    f"{POWER}V6: each remedy's reward in the last quarter less that of its model without correction, with "
    "simultaneous intervals (Bonferroni over the remedies that ran; BF16 is no remedy). Reproduced if an "
    "interval lies above zero or below it and the best and the worst remedy of this kind, none counted as "
    f"zero, differ by more than {MARGIN}; no effect if all intervals lie within it; else inconclusive."
)


Ranking = list[tuple[str, Interval]]
"""Remedies and what each changes, the best first."""


def run(run: Run) -> None:
    arms = (NONE, TIS, GSPO) if run.smoke else (NONE, *REMEDIES, MOE, *OF_EXPERTS)
    staged(run, arms, lambda tables: arms if _verdict(ranking(tables)) == "inconclusive" else (), collect)


def ranking(results: Results | m.Tables) -> Ranking:
    """Return remedies with their reward less that without correction, the best first, at the last stage."""
    views = m.Views(results)
    present = [name for name in BASELINE if name in views.arms and name not in CONTROLS]
    level = 1 - (1 - level_of(views, NONE)) / len(present)
    parts = {name: Part(m.REWARD, minus(name, BASELINE[name]), "positive", MARGIN) for name in present}
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
    unit = f"reward, last quarter: {shown} minus {BASELINE[shown]}"
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
