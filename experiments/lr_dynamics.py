"""The claims of *lr* over long responses: rates, corrections, prompts, schedules, FP16, sharpness.

On chains of 64 terms at the truncated dose of *acrl*, under which a run without correction collapses.
"""

from math import log

from experiments import campaign
from experiments.campaign import PILOT_STEPS, halved, long
from experiments.dynamics_study import measures as m
from experiments.dynamics_study.earlier import same_arms
from experiments.dynamics_study.rules import Claim, Part, alone, minus, slope
from experiments.dynamics_study.stages import compute, findings, rule_text
from experiments.dynamics_study.studies import watching
from simlab.claims import Finding
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results

NONE, BF16, FP16 = long(campaign.NONE), long(campaign.BF16), long(campaign.FP16)
TIS, MIS = long(campaign.TIS), long(campaign.MIS)
SEQ_TIS, SEQ_MIS = long(campaign.SEQ_TIS), long(campaign.SEQ_MIS)
SLOW, FEW = long(campaign.SLOW), long(campaign.FEW)
COLLAPSE = Part(m.FALL, minus(NONE, BF16), "negative", 0.03)
LPD_WITH_NORM = m.together("log_ppl_abs_diff", "grad_norm", "log_ppl_abs_diff and gradient norm")
LPD_WITH_REWARD = m.together("log_ppl_abs_diff", "reward", "log_ppl_abs_diff and reward")
LPD = m.late_log("log_ppl_abs_diff", "log_ppl_abs_diff")
SHARPNESS = m.watched_together("hessian_top", "rms_log_rho", "top Hessian eigenvalue and RMS log rho")
WATCHED = {NONE: ("mismatch", "curvature")}
SIZES = {log(4096): NONE, log(102): FEW}

CLAIMS = (
    Claim(
        "L1",
        (
            Part(LPD_WITH_NORM, alone(NONE), "positive", 0.2),
            Part(LPD_WITH_REWARD, alone(NONE), "negative", 0.2),
        ),
        note="Reward of the sampler on training prompts stands for validation.",
    ),
    Claim(
        "L2",
        (
            Part(m.GROWTH_LPD, minus(SLOW, NONE), "negative", 0.05),
            Part(LPD, minus(SLOW, NONE), "negative", 0.05),
        ),
        note="At equal steps: a tenth of the rate also learns less.",
    ),
    Claim(
        "L3",
        (
            Part(m.FALL, minus(TIS, BF16), "zero", 0.05),
            *(Part(m.FALL, minus(other, TIS), "negative", 0.03) for other in (MIS, SEQ_TIS, SEQ_MIS)),
        ),
        COLLAPSE,
    ),
    Claim(
        "L4",
        (Part(m.COLLAPSE_STEP, slope(SIZES, "log of the prompts"), "zero", 0.05 * PILOT_STEPS),),
        COLLAPSE,
    ),
    Claim(
        "L6",
        tuple(Part(m.REWARD, minus(halved(name), name), "positive", 0.02) for name in (MIS, TIS)),
        note=f"Length is nearly fixed here, so the period is given: {PILOT_STEPS // 4} steps.",
    ),
    Claim(
        "L7",
        (Part(m.REWARD, minus(FP16, BF16), "negative", 0.03),),
        note="FP16 rounds at the same points in decoding and scoring: hardly any mismatch is left. That a "
        "schedule stabilizes it is not asked.",
    ),
    Claim(
        "L11",
        (
            Part(m.ENTROPY, minus(halved(NONE), NONE), "positive", 0.01),
            Part(m.PEAK_REWARD, minus(halved(NONE), NONE), "positive", 0.01),
        ),
    ),
    Claim("L12", (Part(SHARPNESS, alone(NONE), "positive", 0.2),)),
)


def run(run: Run) -> None:
    compute(run, CLAIMS, smoke=(NONE, TIS), make=watching(WATCHED), watched=WATCHED)


def decide(results: Results) -> list[Finding]:
    return findings(results, CLAIMS)


EXPERIMENT = Experiment(
    name="lr_dynamics",
    question="Is mismatch a matter of the learning rate, and do schedules cure it at the chosen dose?",
    decision_rule=rule_text(CLAIMS),
    run=run,
    minutes=40.0,
    claims=tuple(claim.id for claim in CLAIMS),
    figures=tuple(f"lr_fig{number}" for number in (1, 2, 3, 4, 5, 11, 12, 13)),
    decide=decide,
    goes_on=same_arms,
)
