"""Length as a warning (*lr* Alg. 1): where length pays, does it surge, and does a halved rate help?"""

from experiments.campaign import LENGTHS
from experiments.dynamics_study import measures as m
from experiments.dynamics_study.earlier import same_arms
from experiments.dynamics_study.rules import Claim, Part, alone, minus
from experiments.dynamics_study.stages import compute, findings, rule_text
from simlab.claims import Finding
from simlab.core.experiment import Experiment, Run
from simlab.core.results import Results

FREE, BF16, TRIGGERED, TRIGGERED_LATE, WIDE, WIDE_TRIGGERED, WIDE_LATE = LENGTHS
LONGER = m.growth("response_length", "the response length")
COLLAPSE = Part(m.FALL, minus(FREE, BF16), "negative", 0.03)

CLAIMS = (
    Claim(
        "L5",
        (
            Part(LONGER, alone(FREE), "positive", 0.4),
            Part(m.REWARD, minus(TRIGGERED, FREE), "positive", 0.02),
            Part(m.REWARD, minus(TRIGGERED_LATE, TRIGGERED), "negative", 0.02),
        ),
        COLLAPSE,
        note="On the recurrence, where length pays; a surge is 1.5 times the early length for three steps.",
    ),
    Claim(
        "L13",
        (
            Part(m.REWARD, minus(TRIGGERED, FREE), "positive", 0.02),
            Part(m.REWARD, minus(WIDE_TRIGGERED, WIDE), "positive", 0.02),
            Part(m.REWARD, minus(WIDE_LATE, WIDE_TRIGGERED), "negative", 0.02),
        ),
        COLLAPSE,
        note="Hidden sizes 64 and 96.",
    ),
)


def run(run: Run) -> None:
    compute(run, CLAIMS, smoke=(FREE,))


def decide(results: Results) -> list[Finding]:
    return findings(results, CLAIMS)


EXPERIMENT = Experiment(
    name="length_dynamics",
    question="Where length pays, does it surge before a collapse, and does the triggered schedule help?",
    decision_rule=rule_text(CLAIMS),
    run=run,
    minutes=10.0,
    claims=tuple(claim.id for claim in CLAIMS),
    figures=("lr_fig6", "lr_fig7", "lr_fig8", "lr_fig9", "lr_fig10"),
    decide=decide,
    goes_on=same_arms,
)
