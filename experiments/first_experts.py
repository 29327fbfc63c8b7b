"""First policies with experts over long responses: taught and kept like those of `first_policies`."""

from experiments.campaign import experts
from experiments.first_policies import RULE, Screening
from simlab.core.experiment import Experiment

EXPERIMENT = Experiment(
    name="first_experts",
    question="Which first policies with experts have learned their task?",
    decision_rule=RULE,
    run=Screening(experts, "chain-moe").run,
    minutes=70.0,
)
