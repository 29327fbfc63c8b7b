"""The claims of *hacking* about training: survival bias, clipping, injected weights, forks.

On chains of 64 terms at the truncated dose of *acrl*, under which a run without correction collapses.
"""

from collections.abc import Sequence

import pandas as pd

from experiments import campaign
from experiments.campaign import long
from experiments.dynamics_study import measures as m
from experiments.dynamics_study.earlier import same_arms
from experiments.dynamics_study.rules import Claim, Part, alone, minus, slope
from experiments.dynamics_study.runs import Frames, collect
from experiments.dynamics_study.stages import compute, findings, rule_text
from experiments.dynamics_study.studies import FORKS, forked, watch
from simlab.claims import Finding
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results

NONE, BF16, TIS = long(campaign.NONE), long(campaign.BF16), long(campaign.TIS)
GSPO, NOISE = long(campaign.GSPO), long(campaign.NOISE)
CLIPS = {high: long(name) for high, name in campaign.CLIPS.items()}
DELTAS = {delta: long(name) for delta, name in campaign.DELTAS.items()}
FORK, OTHER_DATA, MISMATCH_CUT, DISTORTION_CUT = FORKS
DISTORTED = DELTAS[2.0]
RAISED = {0.0: GSPO} | {delta - 1: name for delta, name in DELTAS.items() if delta > 0}
COLLAPSE = Part(m.FALL, minus(NONE, BF16), "negative", 0.03)
WATCHED = {
    NONE: ("mismatch", "clipping", "clusters"),
    CLIPS[0.28]: ("clipping",),
    GSPO: ("hacking", "clipping"),
    DISTORTED: ("hacking",),
}
J_WITH_STEP = m.watched_together("hacking_j", "step", "J and the step")
J_LATE = m.watched_late("hacking_j", "J with the weights of delta = 2")
PCC = m.change("pcc", "the correlation of pi_train and pi_infer")
LARGEST = m.growth("max_rho", "the largest rho of 10 steps")
COUPLED = m.Measure(
    "size of the rank correlation over the run of RMS log rho and entropy",
    lambda view: abs(m.together("rms_log_rho", "entropy", "")(view)),
)
DOSED_MISMATCH = m.watched_late("rms_log_rho", "RMS log rho under the dosed engines at the end")
BEFORE_ENTROPY = m.first_change("entropy", "rms_log_rho", "RMS log rho and entropy")
BEFORE_NORM = m.first_change("grad_norm", "rms_log_rho", "RMS log rho and gradient norm")
CLUSTERING = m.watched_change("shared_values", "share of uncertain tokens with another's pi_infer")

CLAIMS = (
    Claim(
        "H4",
        (
            Part(m.RARE_RHO, alone(NONE), "negative", 0.01),
            Part(m.RARE_DRIFT, alone(NONE), "negative", 0.02),
            Part(m.RARE_SPREAD, alone(NONE), "positive", 0.1),
        ),
        note="Engines that truncate flatten the law, so part of it needs no survival; see theory_survival.",
    ),
    Claim(
        "H7",
        (
            Part(m.GROWTH, minus(TIS, NONE), "negative", 0.05),
            Part(m.ENTROPY_GROWTH, minus(TIS, NONE), "positive", 0.05),
            Part(m.REWARD, minus(TIS, NONE), "positive", 0.02),
            Part(m.GROWTH, alone(TIS), "positive", 0.05),
        ),
    ),
    Claim("H8", (Part(PCC, alone(NONE), "negative", 0.002), Part(LARGEST, alone(NONE), "positive", 0.1))),
    Claim(
        "H9",
        (
            Part(m.GROWTH, slope(CLIPS, "eps_high"), "negative", 0.5),
            Part(m.GROWTH, alone(GSPO), "zero", 0.1),
        ),
    ),
    Claim(
        "H10",
        (
            Part(m.GROWTH, slope(RAISED, "delta - 1 (0: GSPO)"), "positive", 0.02),
            Part(m.GROWTH, minus(DELTAS[3.0], GSPO), "positive", 0.05),
        ),
    ),
    Claim("H11", (Part(m.GROWTH, minus(DELTAS[0.0], GSPO), "positive", 0.05),)),
    Claim("H12", (Part(m.GROWTH, minus(NOISE, GSPO), "zero", 0.1),)),
    Claim(
        "H13",
        (
            Part(J_WITH_STEP, alone(DISTORTED), "positive", 0.1),
            Part(J_LATE, minus(DISTORTED, GSPO), "positive", 0.5),
        ),
    ),
    Claim("H14", (Part(m.REWARD, minus(OTHER_DATA, BF16), "negative", 0.03),), COLLAPSE),
    Claim(
        "H15",
        (
            Part(BEFORE_ENTROPY, alone(NONE), "positive", 10),
            Part(BEFORE_NORM, alone(NONE), "positive", 10),
        ),
    ),
    Claim(
        "H17",
        (Part(COUPLED, minus(NONE, BF16), "positive", 0.2),),
        note="Coupling only, not both directions. Changed after the run, which compared with zero: an "
        "absolute correlation is positive by itself.",
    ),
    Claim("H18", (Part(CLUSTERING, alone(NONE), "positive", 0.02),)),
    Claim(
        "H20",
        (
            Part(DOSED_MISMATCH, minus(MISMATCH_CUT, FORK), "negative", 0.02),
            Part(DOSED_MISMATCH, minus(DISTORTION_CUT, FORK), "negative", 0.02),
        ),
        note="Forked halfway; distortion is cut by sequence TIS.",
    ),
)


def make(run: Run, arms: Sequence[str], seed: int) -> Frames:
    # Of no arm there are no tables.
    plain = [arm for arm in arms if arm not in FORKS] or [NONE]
    frames = collect(run, plain, seed)
    with run.phase("watching"):
        watched = {NONE: ("mismatch",)} if run.smoke else WATCHED
        frames["watched"] = watch(run, frames["runs"], watched, seed)
    if set(arms) & set(FORKS):
        with run.phase("forks"):
            branches = forked(run, seed, NONE)
        frames |= {name: pd.concat([frames[name], branches[name]]) for name in branches}
    return frames


def run(run: Run) -> None:
    compute(run, CLAIMS, smoke=(NONE, GSPO), make=make, watched=WATCHED)


def decide(results: Results) -> list[Finding]:
    return findings(results, CLAIMS)


EXPERIMENT = Experiment(
    name="hacking_dynamics",
    question="Do objective-level hacking and its remedies show in training at the chosen dose?",
    decision_rule=rule_text(CLAIMS),
    run=run,
    minutes=60.0,
    claims=tuple(claim.id for claim in CLAIMS),
    figures=(
        *(f"hacking_fig{number}" for number in (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 17)),
        "hacking_tab1",
    ),
    decide=decide,
    goes_on=same_arms,
)
