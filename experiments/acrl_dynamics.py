"""The claims of *acrl* about training over long responses: FP8 and truncated rollouts, gamma, X, levels of Y.

On chains of 64 terms, with doses at which d begins at about the paper's X: .013 to nearest, .031 truncated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log

import numpy as np

from experiments import campaign
from experiments.campaign import LEVELS, long
from experiments.dynamics_study import measures as m
from experiments.dynamics_study.cost import acrl_share
from experiments.dynamics_study.earlier import same_arms
from experiments.dynamics_study.rules import Claim, Part, alone, minus, with_arms
from experiments.dynamics_study.stages import compute, findings, rule_text
from experiments.dynamics_study.studies import watching
from simlab.claims import Finding
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results

NONE, BF16, SEQ_MIS = long(campaign.NONE), long(campaign.BF16), long(campaign.SEQ_MIS)
TIS5, ACRL = long(campaign.TIS5), long(campaign.ACRL)
FP8, FP8_TIS = long(campaign.FP8), long(campaign.FP8_TIS)
FP8_MIS, FP8_ACRL = long(campaign.FP8_MIS), long(campaign.FP8_ACRL)
GAMMAS = {gamma: long(name) for gamma, name in campaign.GAMMAS.items()}
X_LOW, _, X_HIGH = map(long, campaign.REFERENCES.values())
D_MAX = m.Measure("largest d of a step", lambda view: float(view.curve("discrepancy_max").max()))
D_STD = m.Measure(
    "mean std of d over 10 steps", lambda view: float(np.nanmean(view.curve("discrepancy_std")))
)
HELD_OUT = {
    engine: m.watched_late(f"held_out_{engine.lower()}", f"reward on held-out prompts under {engine}")
    for engine in ("FP8", "BF16")
}
WATCHED = {BF16: ("under FP8", "held out")} | dict.fromkeys((FP8_TIS, FP8_MIS, FP8_ACRL), ("held out",))
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
    Claim(
        "A7",
        (Part(BASELINE, alone(BF16), "zero", log(0.017 / 0.011)),),
        note="Ranges of single runs, each look 64 responses; the mean over starts is in acrl_tab8.",
    ),
    Claim(
        "A12",
        (
            Part(m.COMMON_RHO, alone(FP8), "positive", 1e-4),
            Part(m.RARE_RHO, alone(FP8), "negative", 0.01),
        ),
    ),
    Claim(
        "A13",
        (
            *(Part(m.REWARD, minus(FP8_ACRL, other), "positive", 0.02) for other in (FP8_TIS, FP8_MIS, BF16)),
            *(
                Part(measure, minus(FP8_ACRL, other), "positive", 0.02)
                for measure in HELD_OUT.values()
                for other in (FP8_TIS, BF16)
            ),
        ),
        note="Held-out prompts of the same task.",
    ),
)
LEVELS_RULE = "A2, A3 and A4 also with Y per sequence and per batch; the verdict is that per group."
OTHER_LEVELS = {
    level: tuple(with_arms(claim, {ACRL: arm}) for claim in CLAIMS if claim.id in ("A2", "A3", "A4"))
    for level, arm in LEVELS.items()
    if arm != ACRL
}


def run(run: Run) -> None:
    scanned = [claim for claims in OTHER_LEVELS.values() for claim in claims]
    compute(run, (*CLAIMS, *scanned), smoke=(NONE, ACRL), make=watching(WATCHED), watched=WATCHED)
    with run.phase("cost"):
        run.table("cost", acrl_share(run.smoke))


def decide(results: Results) -> list[Finding]:
    cost = results.table("cost").iloc[0]
    share = float(cost["weights_seconds"] / cost["step_seconds"])
    verdict = "reproduced" if share <= 0.005 else "opposite"
    unit = "share of a training step's time"
    scans = {level: findings(results, claims) for level, claims in OTHER_LEVELS.items()}
    return [
        *(with_levels(each, scans) for each in findings(results, CLAIMS)),
        Finding.exact("A8", verdict, share, unit=unit, rule=A8_RULE),
    ]


def with_levels(finding: Finding, scans: Mapping[str, Sequence[Finding]]) -> Finding:
    """Return the finding with what the same claim says at other levels of Y in its note."""
    said = [
        f"Y per {level}: {other.verdict}, {other.effect:.3g} [{other.low:.3g}, {other.high:.3g}]"
        for level, found in scans.items()
        for other in found
        if other.claim == finding.claim
    ]
    return replace(finding, note="; ".join(filter(None, [finding.note, *said])))


EXPERIMENT = Experiment(
    name="acrl_dynamics",
    question="Does ACRL hold the discrepancy over long responses, and is it worth more than truncation?",
    decision_rule=f"{rule_text(CLAIMS)} {LEVELS_RULE} {A8_RULE}",
    run=run,
    minutes=120.0,
    claims=("A8", *(claim.id for claim in CLAIMS)),
    figures=(
        *(f"acrl_fig{number}" for number in (6, 8, 9, 10, 11)),
        *(f"acrl_tab{number}" for number in (1, 2, 6, 7, 8, 9)),
        "levels_of_y",
    ),
    decide=decide,
    goes_on=same_arms,
)
