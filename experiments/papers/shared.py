"""What several papers share: identities, and reasons of margins.

All margins were set on a pilot (four runs per arm from other initial policies) before the runs. A reason
states the smallest difference that the criterion counts.
"""

from simlab.studies.records import Claim, Criterion, Trial

HALF_ANSWER = "half an answer in 100 per doubling"
ONE_ANSWER = "one answer in 100"
TWO_ANSWERS = "two answers in 100"
THREE_ANSWERS = "three answers in 100"
FIVE_ANSWERS = "five answers in 100"
FIVE_PERCENT = "5% of the quantity, as a difference of logarithms"
TEN_PERCENT = "10% of the quantity, as a difference of logarithms"
ONE_CENTINAT = "0.01 nats per token"
WEAK_RANK = "a smaller rank correlation is weak"


def identity(id: str, paper: str, statement: str, reference: str, *checks: Criterion) -> Claim:
    """Return a claim that the experiment `theory` decides by exact checks."""
    return Claim(id, paper, statement, reference, "identity", (Trial("theory", checks),))
