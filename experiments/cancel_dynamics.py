"""The claims of *cancel* about training: does cancelling the common push pay, and for whom?"""

from math import log2

from experiments.campaign import CANCEL, GROUPS
from experiments.dynamics_study import measures as m
from experiments.dynamics_study.earlier import same_arms
from experiments.dynamics_study.rules import Claim, Contrast, Part, minus
from experiments.dynamics_study.stages import compute, findings, rule_text
from experiments.dynamics_study.studies import watching
from simlab.claims import Finding
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results

GRPO, FIX, GSPO, UNCHANGED, MIN, NO_STOP, SCALED = (f"template: {name}" for name in CANCEL)
LOOKED = ("clipping", "frequent energy", "KL to base")
WATCHED = {GSPO: LOOKED, UNCHANGED: LOOKED, MIN: LOOKED}
SPELLED_MIN, SPELLED_UNCHANGED = (f"two_spellings: {name}" for name in ("DFPO min", "DFPO without transform"))
SIZES = {log2(g): (f"template: GSPO, G = {g}", f"template: DFPO min, G = {g}") for g in GROUPS}
SIZES[4.0] = (GSPO, MIN)
ASYM = m.watched_late("asym", "Asym")
ENERGY = m.watched_late("energy_frequent", "share of gradient norms on the most frequent tokens")
JITTER = m.Measure(
    "mean second difference of the reward", lambda view: float(view.curve("reward_jitter").mean())
)
DRIFT = m.watched_late("kl_to_base", "KL to the first policy")
CLIPPED = m.watched_late("clip_fraction", "share of clipped tokens")


def _gain_by_size() -> Contrast:
    """Slope over log2 G of the gain of DFPO over GSPO."""
    middle = sum(SIZES) / len(SIZES)
    scale = sum((x - middle) ** 2 for x in SIZES)
    weights: dict[str, float] = {}
    for x, (without, with_it) in SIZES.items():
        weights |= {with_it: (x - middle) / scale, without: -(x - middle) / scale}
    return Contrast(weights, "slope over log2 G of DFPO min minus GSPO, G = 2, 4, 8, 16")


CLAIMS = (
    Claim(
        "C9",
        tuple(
            Part(measure, minus(MIN, other), "negative", margin)
            for other in (GSPO, UNCHANGED)
            for measure, margin in ((ASYM, 1e-4), (ENERGY, 0.005), (JITTER, 0.002))
        ),
        note="The second three parts are against stop-gradient alone.",
    ),
    Claim(
        "C11",
        (
            Part(m.REWARD, minus(MIN, FIX), "positive", 0.01),
            Part(m.REWARD, minus(FIX, GSPO), "positive", 0.01),
            Part(m.REWARD, minus(GSPO, GRPO), "zero", 0.02),
            Part(m.REWARD, minus(MIN, UNCHANGED), "positive", 0.01),
            Part(m.REWARD, minus(SPELLED_MIN, SPELLED_UNCHANGED), "positive", 0.01),
        ),
        note="Parts (4) and (5) are against stop-gradient alone, which DFPO contains.",
    ),
    Claim(
        "C12",
        tuple(Part(m.REWARD, minus(other, GSPO), "negative", 0.01) for other in (NO_STOP, SCALED)),
        note="Without stop-gradient the printed objective has no gradient: its weight is differentiated.",
    ),
    Claim("C13", (Part(m.REWARD, _gain_by_size(), "positive", 0.005),)),
    Claim(
        "C16",
        (
            Part(DRIFT, minus(GSPO, MIN), "positive", 0.002),
            Part(CLIPPED, minus(GSPO, MIN), "positive", 0.005),
        ),
        note="Clipped tokens of DFPO keep pushing and do not count as clipped. Held-out tasks are left out.",
    ),
)


def run(run: Run) -> None:
    compute(run, CLAIMS, smoke=(UNCHANGED, MIN), make=watching(WATCHED), watched=WATCHED)


def decide(results: Results) -> list[Finding]:
    return findings(results, CLAIMS)


EXPERIMENT = Experiment(
    name="cancel_dynamics",
    question="Does making shared tokens cancel help training, beyond what its stop-gradient does?",
    decision_rule=rule_text(CLAIMS),
    run=run,
    minutes=12.0,
    claims=tuple(claim.id for claim in CLAIMS),
    figures=("cancel_fig2", "cancel_tab3", "cancel_tab4"),
    decide=decide,
    goes_on=same_arms,
)
