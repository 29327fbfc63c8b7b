"""Metrics of every step; `diagnostics.py` has those that are too expensive for that."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from simlab.core.catalog import shorten, suggest
from simlab.metrics import METRICS, VERL_ALIASES
from simlab.models.transformer import Scores
from simlab.objectives import RolloutTerms, TokenBatch
from simlab.objectives.batch import masked_mean
from simlab.rollout.trajectory import Trajectory

STEP_METRICS = (
    "std_rho",
    "mean_rho",
    "max_rho",
    "rms_log_rho",
    "discrepancy",
    "pcc",
    "k3_kl",
    "ess_token",
    "abs_seq_log_ratio",
    "tokens_by_pi_train",
    "mean_rho_by_pi_train",
    "rms_log_rho_by_pi_train",
)
"""Metrics of `simlab.metrics.METRICS` that a run records by default; binned ones are vectors."""
MISMATCH = "rms_log_rho"
"""The metric of the mismatch that every run records."""
STEP_NUMBERS: dict[str, str] = {
    "reward": "Mean reward of the rollout, which the inference engine samples.",
    "response_length": "Mean number of tokens of a response, the end token included.",
    "entropy": "Mean entropy of the training engine's policy over the response tokens, in nats.",
    "router_flips": "Per layer, fraction of tokens that the two engines send to other experts; MoE only.",
    "grad_norm": "Norm of the gradient before clipping, mean over the minibatches.",
    "clip_fraction": "Fraction of tokens whose gradient the clip removes, mean over the minibatches.",
    "clip_fraction_positive": "The part of `clip_fraction` with a positive advantage.",
    "clip_fraction_negative": "The part of `clip_fraction` with a negative advantage.",
    "learning_rate_factor": "Scheduled learning rate / base learning rate, in [0, 1].",
    "std_rho_copied": "std_rho between the engines in bypass mode.",
    "rms_log_rho_copied": "rms_log_rho between the engines in bypass mode.",
    "std_rho_at_rollout": "std_rho between the engines at theta_rollout; stale rollouts only.",
    "rms_log_rho_at_rollout": "rms_log_rho between the engines at theta_rollout; stale rollouts only.",
    "critic_loss": "Squared error of the critic against the returns, halved and clipped; with a critic only.",
    "critic_grad_norm": "Norm of the critic's gradient before clipping; with a critic only.",
}
"""The other numbers of a step, which every run records, and their descriptions."""


def choose_metrics(chosen: Sequence[str] | None) -> tuple[str, ...]:
    """Return the metrics of `METRICS` that a run records: the chosen ones, by default `STEP_METRICS`.

    Raises:
        ValueError: For a name that is not in `METRICS`.
    """
    if chosen is None:
        return STEP_METRICS
    for name in chosen:
        if name not in METRICS:
            hint, names = suggest(VERL_ALIASES.get(name, name), list(METRICS), "simlab list metrics")
            raise ValueError(
                f"metrics must be names of metrics, got {shorten(name)}; {hint}allowed: {', '.join(names)}"
            )
    return tuple(dict.fromkeys((MISMATCH, *chosen)))


def step_metrics(
    batch: TokenBatch, scores: Scores, trajectory: Trajectory, names: Sequence[str] = STEP_METRICS
) -> dict[str, Array]:
    """Return the metrics of one rollout, those of `METRICS` by `names`.

    `scores` are those of the training engine at theta_old.
    """
    measured = {name: METRICS[name](batch) for name in names}
    measured |= {
        "reward": jnp.mean(batch.rewards),
        "response_length": jnp.mean(jnp.sum(batch.mask, axis=1, dtype=jnp.float32)),
        "entropy": masked_mean(scores.entropy, batch.mask),
    }
    if scores.routed_experts is not None and trajectory.routed_experts is not None:
        measured["router_flips"] = router_flips(scores.routed_experts, trajectory)
    return measured


def clip_fractions(
    coefficients: Float[Array, "B T"], batch: TokenBatch, terms: RolloutTerms
) -> dict[str, Float[Array, ""]]:
    """Return the fractions of all tokens whose gradient the clip removes in an update.

    Tokens that a correction, a rejection or a distortion removes do not count. `coefficients` are those of
    the objective without its regularizers, which give clipped tokens a coefficient, too.

    Reference: hacking Tab. 1; verl core_algos.compute_policy_loss_vanilla pg_clipfrac; TRL clip_ratio.
    Deviation: tokens that a staleness mask drops count; verl counts the dual clip apart.
    """
    pushes = terms.advantages * terms.correction * terms.distortion
    clipped = terms.mask & (pushes != 0) & (coefficients == 0)
    signs = {"": clipped, "_positive": clipped & (pushes > 0), "_negative": clipped & (pushes < 0)}
    return {
        f"clip_fraction{sign}": masked_mean(tokens.astype(jnp.float32), batch.mask)
        for sign, tokens in signs.items()
    }


def router_flips(chosen: Int[Array, "B S L top_k"], trajectory: Trajectory) -> Float[Array, " L"]:
    """Return, per layer [L], the fraction of tokens whose set of experts in the rollout is not `chosen`.

    `chosen` [B, P + T - 1, L, top_k] is the training engine's own choice; the order within a set is ignored.
    Counted are the tokens that were read to predict a response token: the last of the prompt and all of the
    response but the last. 0 without any.
    """
    assert trajectory.routed_experts is not None
    start = trajectory.prompts.shape[1] - 1
    ours, theirs = (jnp.sort(x[:, start:], axis=-1) for x in (chosen, trajectory.routed_experts))
    flipped = jnp.any(ours != theirs, axis=-1).astype(jnp.float32)
    mask = trajectory.mask[..., None].astype(jnp.float32)
    return jnp.sum(flipped * mask, axis=(0, 1)) / jnp.maximum(jnp.sum(mask), 1.0)
