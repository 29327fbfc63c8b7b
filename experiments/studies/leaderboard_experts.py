"""Remedies against one dose of mismatch, ranked, where the model has experts: what routes them too.

Those of `leaderboard` and the three of the router.
"""

from experiments.campaign import R2, R3, ROUTER, experts
from experiments.dynamics_study.earlier import same_arms
from experiments.papers.vexact import LEADERBOARD_RULE, V6
from experiments.studies.leaderboard import REMEDIES, Contest
from simlab.core.experiment import Experiment

EXPERTS = Contest(experts, (*REMEDIES, ROUTER, R2, R3))

EXPERIMENT = Experiment(
    name="leaderboard_experts",
    question="Which remedy keeps the most reward of a mixture of experts under one and the same mismatch?",
    decision_rule=LEADERBOARD_RULE,
    run=EXPERTS.run,
    minutes=290.0,
    claims=(V6.id,),
    figures=("leaderboard_experts",),
    collect_evidence=EXPERTS.collect_evidence,
    goes_on=same_arms,
)
