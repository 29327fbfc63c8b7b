"""The claims of *vexact* about training: zero mismatch, doses of three kinds, copies; is zero free?

On chains of 64 terms, where a run under the truncated dose of *acrl* collapses.
"""

from math import log

import numpy as np

from experiments import campaign
from experiments.campaign import PILOT_STEPS, long
from experiments.dynamics_study import measures as m
from experiments.dynamics_study.earlier import same_arms
from experiments.dynamics_study.enforced import SIDES, compare
from experiments.dynamics_study.rules import Claim, Part, alone, minus, slope
from experiments.dynamics_study.stages import compute, findings, rule_text
from simlab.claims import Finding
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results

NONE, BF16 = long(campaign.NONE), long(campaign.BF16)
IDENTICAL, COPIED = long(campaign.IDENTICAL), long(campaign.COPIED)
ON_POLICY, ON_POLICY_BF16 = long(campaign.ON_POLICY), long(campaign.ON_POLICY_BF16)
NEAREST, CUT = (
    slope({-float(bits): long(name) for bits, name in arms.items()}, "bits taken away")
    for arms in (campaign.NEAREST_BITS, campaign.BITS)
)
FIXED, FRESH = (
    slope({log(scale): long(name) for scale, name in arms.items()}, "log of its scale")
    for arms in campaign.NOISES.values()
)
KINDS = (CUT, NEAREST, FIXED)
SAME = 2.0**-8
V5_RULE = (
    "V5: at one set of weights and one key, an engine that adds exactly against the ordinary one of the same "
    "rounding points: the norm of the difference of their gradients on one rollout is at most 2^-8 (the unit "
    "roundoff of BF16) of the gradient's, and at least 99% of the sampled tokens are the same; opposite if "
    "either fails."
)

CLAIMS = (
    Claim(
        "V1",
        (
            Part(m.WIDEST, alone(IDENTICAL), "zero", 1e-6),
            Part(m.REWARD, minus(IDENTICAL, NONE), "positive", 0.02),
            Part(m.FALL, minus(IDENTICAL, BF16), "zero", 0.05),
        ),
        note="Both engines are that of the dose, with exact sums; training passes its rounding straight "
        "through. With float32 sums the same engine twice still differs: std rho up to .002 (`leaderboard`).",
    ),
    Claim("V2", (Part(m.FALL, minus(ON_POLICY, ON_POLICY_BF16), "negative", 0.03),)),
    Claim(
        "V3",
        (
            *(Part(m.REWARD, kind, "negative", 0.01) for kind in KINDS),
            *(Part(m.COLLAPSE_STEP, kind, "negative", 0.01 * PILOT_STEPS) for kind in KINDS),
            Part(m.REWARD, FRESH, "negative", 0.01),
        ),
        note="Eight doses of three kinds, and three of noise that is fresh at every token as the control.",
    ),
    Claim("V7", (Part(m.REWARD, minus(COPIED, IDENTICAL), "zero", 0.03),)),
)


def run(run: Run) -> None:
    compute(run, CLAIMS, smoke=(NONE,))
    with run.phase("enforced"):
        run.table("enforced", compare(run.smoke))


def decide(results: Results) -> list[Finding]:
    found = results.table("enforced")
    difference, agreement = float(np.max(found["gradient_difference"])), float(np.min(found["same_tokens"]))
    verdict = "reproduced" if difference <= SAME and agreement >= 0.99 else "opposite"
    note = f"Pairs {', '.join(map(' against '.join, SIDES))}; least share of equal tokens {agreement:.4f}."
    unit = "largest relative difference of the gradients"
    return [
        *findings(results, CLAIMS),
        Finding.exact("V5", verdict, difference, unit=unit, rule=V5_RULE, note=note),
    ]


EXPERIMENT = Experiment(
    name="vexact_dynamics",
    question="Does a run without any mismatch stay stable, and does harm follow the dose?",
    decision_rule=f"{rule_text(CLAIMS)} {V5_RULE}",
    run=run,
    minutes=50.0,
    claims=("V5", *(claim.id for claim in CLAIMS)),
    figures=("vexact_doses", "vexact_survival"),
    decide=decide,
    goes_on=same_arms,
)
