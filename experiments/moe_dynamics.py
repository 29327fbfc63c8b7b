"""Experts beside a dense model of the same recipe: are they more fragile, and does ACRL work for both?

Over long responses, at the dose of *acrl*.
"""

import numpy as np

from experiments import campaign
from experiments.campaign import experts, long
from experiments.dynamics_study import measures as m
from experiments.dynamics_study.earlier import same_arms
from experiments.dynamics_study.rules import Claim, Contrast, Part, minus
from experiments.dynamics_study.stages import compute, findings, rule_text
from simlab.claims import Finding
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results

NONE, BF16, ACRL = map(long, (campaign.NONE, campaign.BF16, campaign.ACRL))
MOE, MOE_BF16, MOE_ACRL = map(experts, (campaign.NONE, campaign.BF16, campaign.ACRL))
FIRST = m.Measure("log of RMS log rho, first tenth", lambda view: float(np.log(view.early("rms_log_rho"))))
LOSS = Contrast(
    {MOE: 1.0, MOE_BF16: -1.0, NONE: -1.0, BF16: 1.0},
    f"({MOE} minus {MOE_BF16}) minus ({NONE} minus {BF16})",
)

CLAIMS = (
    Claim(
        "H16",
        (
            Part(FIRST, minus(MOE, NONE), "positive", 0.05),
            Part(m.GROWTH, minus(MOE, NONE), "positive", 0.05),
            Part(m.REWARD, LOSS, "negative", 0.03),
        ),
        note="First policies of both that have learned the task (`first_policies`, `first_experts`), paired "
        "in their order; the router is that of a BF16 server.",
    ),
    Claim(
        "A10",
        (
            Part(m.REWARD, minus(ACRL, NONE), "positive", 0.02),
            Part(m.REWARD, minus(MOE_ACRL, MOE), "positive", 0.02),
        ),
    ),
)


def run(run: Run) -> None:
    compute(run, CLAIMS, smoke=(MOE, MOE_ACRL))


def decide(results: Results) -> list[Finding]:
    return findings(results, CLAIMS)


EXPERIMENT = Experiment(
    name="moe_dynamics",
    question="Are mixtures of experts more fragile than dense models at one dose, and does ACRL help both?",
    decision_rule=rule_text(CLAIMS),
    run=run,
    minutes=25.0,
    claims=tuple(claim.id for claim in CLAIMS),
    figures=("acrl_tab5",),
    decide=decide,
    goes_on=same_arms,
)
