"""Claims about corrections of 2026, from sources other than the papers of this project.

Experiment: `theory_corrections` computes the fraction of tokens that each trust region drops, exactly, in
three ways in which engines drift apart.
"""

from experiments.papers.shared import claim_makers, trial
from simlab.studies.records import EXACT_SUMS, stored_row

_, measurement, _ = claim_makers("recent")

DROPPED_MARGIN = 0.01
"""One token in 100."""

# fmt: off
CLAIMS = (
    measurement("N1", "IcePop drops fewer tokens while the gap between the engines widens",
        "KPop, Ring blog of 2026-05-26",
        trial("theory_corrections",
            stored_row("dropped", "fraction of tokens dropped at the largest KL minus that at the smallest",
                "negative", DROPPED_MARGIN, because="one token in 100"),
            regime=EXACT_SUMS,
            note="The policy sharpens and the noise grows with it.")),
)
# fmt: on
(N1,) = CLAIMS
