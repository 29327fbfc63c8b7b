"""Remedies against one dose of mismatch, ranked, where the model has experts: what routes them too.

The three of the router and eight of those in `leaderboard`; the other nine were not run (`LOG.md`).
"""

from experiments import campaign
from experiments.campaign import ACRL, EXACT, FP16, GSPO, HEAD, R2, R3, ROUTER, TIS, TIS5, experts, halved
from experiments.leaderboard import RULE, Contest
from simlab.core.experiment import Experiment

EXPERTS = Contest(experts, (EXACT, FP16, HEAD, halved(campaign.NONE), TIS, TIS5, ACRL, GSPO, ROUTER, R2, R3))

EXPERIMENT = Experiment(
    name="leaderboard_experts",
    question="Which remedy keeps the most reward of a mixture of experts under one and the same mismatch?",
    decision_rule=RULE,
    run=EXPERTS.run,
    minutes=75.0,
    claims=("V6",),
    figures=("leaderboard_experts",),
    decide=EXPERTS.decide,
)
