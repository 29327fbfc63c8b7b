"""The claims of *acrl* about training: FP8 and truncated rollouts, gamma, X, clips."""

from math import log

import numpy as np

from experiments.campaign import (
    ACRL,
    BF16,
    FP8,
    FP8_ACRL,
    FP8_MIS,
    FP8_TIS,
    GAMMAS,
    NONE,
    REFERENCES,
    SEQ_MIS,
    TIS5,
)
from experiments.dynamics_study import measures as m
from experiments.dynamics_study.cost import acrl_share
from experiments.dynamics_study.rules import Claim, Part, alone, minus
from experiments.dynamics_study.stages import compute, findings, rule_text
from experiments.dynamics_study.studies import watching
from simlab.claims import Finding
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results

X_LOW, _, X_HIGH = REFERENCES.values()
D_MAX = m.Measure("largest d of a step", lambda view: float(view.curve("discrepancy_max").max()))
D_STD = m.Measure(
    "mean std of d over 10 steps", lambda view: float(np.nanmean(view.curve("discrepancy_std")))
)
WATCHED = {BF16: ("under FP8",)}
BASELINE = m.watched_range("discrepancy_fp8", "discrepancy under FP8")
A8_RULE = (
    "A8: reproduced if ACRL's weights take at most 0.5% of the time of a training step (the least of 30 "
    "timings each, one core), opposite if more."
)

CLAIMS = (
    Claim(
        "A1",
        (
            Part(m.GROWTH_D, alone(FP8), "positive", 0.05),
            Part(m.FALL, minus(FP8, BF16), "negative", 0.03),
        ),
    ),
    Claim(
        "A2",
        (
            Part(m.REWARD, minus(NONE, BF16), "negative", 0.03),
            Part(m.REWARD, minus(SEQ_MIS, TIS5), "negative", 0.02),
            Part(m.REWARD, minus(TIS5, NONE), "positive", 0.02),
            Part(m.REWARD, minus(ACRL, TIS5), "positive", 0.02),
        ),
        note="At the regime's truncated dose.",
    ),
    Claim(
        "A3",
        (
            Part(m.FROM_X, minus(ACRL, TIS5), "negative", 0.05),
            Part(D_MAX, minus(ACRL, TIS5), "negative", 0.005),
            Part(D_STD, minus(ACRL, TIS5), "negative", 0.001),
        ),
    ),
    Claim("A4", tuple(Part(m.ENTROPY, minus(ACRL, other), "positive", 0.01) for other in (TIS5, NONE, BF16))),
    Claim(
        "A5",
        (
            Part(m.FALL, minus(GAMMAS[1.0], BF16), "zero", 0.05),
            Part(m.FALL, minus(GAMMAS[2.1], GAMMAS[1.0]), "negative", 0.03),
            Part(m.GROWTH_D, alone(GAMMAS[0.1]), "positive", 0.05),
        ),
    ),
    Claim(
        "A6",
        (
            Part(m.REWARD, minus(X_LOW, ACRL), "zero", 0.03),
            Part(m.REWARD, minus(X_HIGH, ACRL), "zero", 0.03),
            Part(m.ENTROPY, minus(X_LOW, X_HIGH), "positive", 0.01),
        ),
    ),
    Claim("A7", (Part(BASELINE, alone(BF16), "zero", log(0.017 / 0.011)),)),
    Claim(
        "A12",
        (
            Part(m.COMMON_RHO, alone(FP8), "positive", 1e-4),
            Part(m.RARE_RHO, alone(FP8), "negative", 0.01),
        ),
    ),
    Claim(
        "A13",
        tuple(Part(m.REWARD, minus(FP8_ACRL, other), "positive", 0.02) for other in (FP8_TIS, FP8_MIS, BF16)),
        note="Reward on training prompts under the rollout engine; held-out tasks are left out.",
    ),
)


def run(run: Run) -> None:
    compute(run, CLAIMS, smoke=(NONE, ACRL), make=watching(WATCHED))
    with run.phase("cost"):
        run.table("cost", acrl_share(run.smoke))


def decide(results: Results) -> list[Finding]:
    cost = results.table("cost").iloc[0]
    share = float(cost["weights_seconds"] / cost["step_seconds"])
    verdict = "reproduced" if share <= 0.005 else "opposite"
    unit = "share of a training step's time"
    return [*findings(results, CLAIMS), Finding.exact("A8", verdict, share, unit=unit, rule=A8_RULE)]


EXPERIMENT = Experiment(
    name="acrl_dynamics",
    question="Does ACRL hold the discrepancy, and is it worth more than truncation?",
    decision_rule=f"{rule_text(CLAIMS)} {A8_RULE}",
    run=run,
    minutes=25.0,
    claims=("A8", *(claim.id for claim in CLAIMS)),
    figures=tuple(
        f"acrl_{name}"
        for name in ("fig6", "fig8", "fig9", "fig10", "fig11", "tab1", "tab2", "tab7", "tab8", "tab9")
    ),
    decide=decide,
)
