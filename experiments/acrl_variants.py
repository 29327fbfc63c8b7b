"""The claims of *acrl* that need other objectives: PPO, DAPO, other distances, a penalty on discrepancy.

Over long responses, at the dose of *acrl*.
"""

from collections.abc import Sequence

import pandas as pd

from experiments import campaign
from experiments.campaign import DAPO, DAPO_ACRL, PPO, PPO_ACRL, long
from experiments.dynamics_study import measures as m
from experiments.dynamics_study.earlier import same_arms
from experiments.dynamics_study.rules import Claim, Part, minus
from experiments.dynamics_study.runs import Frames, collect
from experiments.dynamics_study.stages import compute, findings, rule_text
from experiments.dynamics_study.variants import KL, MOVING, PENALIZED, PENALTY, SQUARED, VARIANTS, varied
from simlab.claims import Finding
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results

NONE, ACRL = long(campaign.NONE), long(campaign.ACRL)
PAIRS = {NONE: ACRL, long(PPO): long(PPO_ACRL), long(DAPO): long(DAPO_ACRL)}
DISCREPANCY = m.late_log("discrepancy", "the discrepancy d")

CLAIMS = (
    Claim(
        "A9",
        tuple(Part(m.REWARD, minus(acrl, bare), "positive", 0.02) for bare, acrl in PAIRS.items()),
        note="gamma 0.35, weights up to 5, X from the first steps of GRPO; the order is GRPO, PPO, DAPO.",
    ),
    Claim(
        "A14",
        (Part(m.REWARD, minus(PENALIZED, NONE), "negative", 0.02),),
        Part(DISCREPANCY, minus(PENALIZED, NONE), "negative", 0.05),
        note=f"The penalty is {PENALTY:g} for the mean discrepancy of a batch; the reward is without it.",
    ),
    Claim(
        "A16",
        tuple(Part(m.REWARD, minus(variant, ACRL), "zero", 0.05) for variant in (SQUARED, KL, MOVING)),
        note="X moves a fifth of the way to the last 10 steps' discrepancy every 10 steps.",
    ),
)


def make(run: Run, arms: Sequence[str], seed: int) -> Frames:
    # Of no arm there are no tables.
    plain = [arm for arm in arms if arm not in VARIANTS] or [NONE]
    frames = collect(run, plain, seed)
    if variants := [arm for arm in arms if arm in VARIANTS]:
        with run.phase("variants"):
            more = varied(run, variants, seed)
        frames |= {name: pd.concat([frames[name], more[name]]) for name in more}
    return frames


def run(run: Run) -> None:
    # One program serves the distances; the penalty has its own, which a smoke run does without.
    compute(run, CLAIMS, smoke=(NONE, ACRL, SQUARED), make=make)


def decide(results: Results) -> list[Finding]:
    return findings(results, CLAIMS)


EXPERIMENT = Experiment(
    name="acrl_variants",
    question="Does ACRL help beyond GRPO, with other distances, and can a penalty take its place?",
    decision_rule=rule_text(CLAIMS),
    run=run,
    minutes=60.0,
    claims=tuple(claim.id for claim in CLAIMS),
    figures=("acrl_tab4",),
    decide=decide,
    goes_on=same_arms,
)
