"""Objectives: every policy-gradient variant as a pure function of log-probabilities, with a token
coefficient."""

from simlab.objectives.advantages import ADVANTAGES
from simlab.objectives.aggregation import AGGREGATIONS
from simlab.objectives.batch import TokenBatch, prepare_batch
from simlab.objectives.catalog import (
    OBJECTIVE_MODIFIERS,
    OBJECTIVES,
    get_objective,
    with_modifiers,
)
from simlab.objectives.evaluate import objective_value, resolve, token_coefficients, vocabulary_coefficients
from simlab.objectives.extras import critic_penalty, entropy_bonus, kl_penalty
from simlab.objectives.objective import (
    Objective,
    RolloutTerms,
    columns_needed,
    override_defaults,
    override_names,
    regularization,
    rollout_terms,
    surrogate_value,
    value_from_terms,
    with_overrides,
)
from simlab.objectives.proximal import with_loglinear_proximal
from simlab.objectives.vocabulary_terms import restrict_to_sampled_support, with_top_k_report

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "OBJECTIVES",
    "OBJECTIVE_MODIFIERS",
    "Objective",
    "RolloutTerms",
    "TokenBatch",
    "columns_needed",
    "critic_penalty",
    "entropy_bonus",
    "get_objective",
    "kl_penalty",
    "objective_value",
    "override_defaults",
    "override_names",
    "prepare_batch",
    "regularization",
    "resolve",
    "restrict_to_sampled_support",
    "rollout_terms",
    "surrogate_value",
    "token_coefficients",
    "value_from_terms",
    "vocabulary_coefficients",
    "with_loglinear_proximal",
    "with_modifiers",
    "with_overrides",
    "with_top_k_report",
]
