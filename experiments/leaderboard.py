"""All remedies against one dose of mismatch, at one budget, ranked."""

import numpy as np

from experiments.campaign import (
    ACRL,
    BF16,
    COPIED,
    EXACT,
    GSPO,
    MIS,
    NONE,
    SEQ_MIS,
    SEQ_TIS,
    SLOW,
    TIS,
)
from experiments.dynamics_study import measures as m
from experiments.dynamics_study.rules import POWER, Part, effect, minus
from experiments.dynamics_study.runs import compute
from simlab.claims import Finding, Interval, holm, p_value
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
    SLOW,
    f"{NONE}, halving",
    COPIED,
    "IcePop",
    "CISPO",
    "GSPO, token TIS",
)
RULE = (
    f"{POWER}V6: each remedy's reward in the last quarter less that without correction, p-values corrected "
    f"for their number (Holm). Reproduced if two remedies' effects have corrected p below 0.05 and differ by "
    f"more than {MARGIN}, or one has and exceeds it; no effect if all lie within it; else inconclusive."
)


def run(run: Run) -> None:
    compute(run, (NONE, *REMEDIES), smoke=(NONE, TIS, GSPO))


def ranking(results: Results) -> list[tuple[str, Interval, float]]:
    """Return (remedy, reward less that without correction, corrected p), the best first."""
    views = m.Views(results)
    found = {
        name: effect(views, Part(m.REWARD, minus(name, NONE), "positive", MARGIN))
        for name in REMEDIES
        if name in views.arms
    }
    known = {name: interval for name, interval in found.items() if interval is not None}
    corrected = holm([p_value(interval) for interval in known.values()])
    rows = [(name, interval, float(p)) for (name, interval), p in zip(known.items(), corrected, strict=True)]
    return sorted(rows, key=lambda row: -row[1].effect)


def decide(results: Results) -> list[Finding]:
    rows = ranking(results)
    certain = [interval.effect for _, interval, p in rows if p < 0.05] + [0.0]
    inside = all(max(abs(i.low), abs(i.high)) <= MARGIN for _, i, _ in rows)
    verdict = "reproduced" if np.ptp(certain) > MARGIN else "no effect" if inside else "inconclusive"
    listed = ", ".join(f"{name} {interval.effect:+.3f}" for name, interval, _ in rows)
    best, interval, _ = rows[0]
    unit = f"reward, last quarter: {best} (the best) minus {NONE}"
    return [Finding.of("V6", verdict, interval, unit=unit, rule=RULE, note=listed)]


EXPERIMENT = Experiment(
    name="leaderboard",
    question="Which remedy keeps the most reward under one and the same mismatch?",
    decision_rule=RULE,
    run=run,
    minutes=20.0,
    claims=("V6",),
    figures=("leaderboard",),
    decide=decide,
)
