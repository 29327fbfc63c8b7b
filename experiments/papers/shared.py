"""Constructors of claims and reasons of margins that several papers share.

All margins were set on a pilot (four runs per arm from other initial policies) before the runs. A reason
states the smallest difference that the criterion counts.
"""

from collections.abc import Callable
from functools import partial

from simlab.studies.records import Claim, Criterion, Kind, Trial

HALF_ANSWER = "half an answer in 100 per doubling"
ONE_ANSWER = "one answer in 100"
TWO_ANSWERS = "two answers in 100"
THREE_ANSWERS = "three answers in 100"
FIVE_ANSWERS = "five answers in 100"
FIVE_PERCENT = "5% of the quantity, as a difference of logarithms"
TEN_PERCENT = "10% of the quantity, as a difference of logarithms"
ONE_CENTINAT = "0.01 nats per token"
WEAK_RANK = "a smaller rank correlation is weak"


def make_claim(paper: str, kind: Kind, id: str, statement: str, reference: str, *trials: Trial) -> Claim:
    """Return a claim of a paper."""
    return Claim(id, paper, statement, reference, kind, trials)


def make_identity(paper: str, id: str, statement: str, reference: str, *checks: Criterion | Trial) -> Claim:
    """Return a claim that exact checks decide; the experiment `theory` computes those outside a trial."""
    trials = [each for each in checks if isinstance(each, Trial)]
    if exact := tuple(each for each in checks if isinstance(each, Criterion)):
        trials.append(Trial("theory", exact))
    return make_claim(paper, "identity", id, statement, reference, *trials)


def trial(experiment: str, *criteria: Criterion, note: str = "", rule: str = "") -> Trial:
    """Return how an experiment tests a claim."""
    return Trial(experiment, criteria, note, rule)


def claim_makers(paper: str) -> tuple[Callable[..., Claim], ...]:
    """Return the constructors of the claims of a paper: dynamics, measurement, identity."""
    kinds: tuple[Kind, ...] = ("dynamics", "measurement")
    return *(partial(make_claim, paper, kind) for kind in kinds), partial(make_identity, paper)
