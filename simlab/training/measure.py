"""What is measured at every step, and the evaluation that is too dear for it."""

import jax.numpy as jnp
from jax import Array

from simlab.core.streams import stream
from simlab.engines import Engine
from simlab.metrics import METRICS
from simlab.models.parameters import Params
from simlab.models.transformer import Scores
from simlab.objectives import TokenBatch
from simlab.objectives.batch import masked_mean
from simlab.rollout.generate import generate
from simlab.rollout.trajectory import Trajectory
from simlab.tasks import END, PAD
from simlab.training.recipe import Recipe

# Names in `simlab.metrics.METRICS`; the binned ones are vectors over `PROBABILITY_EDGES`.
STEP_METRICS = (
    "std_rho",
    "mean_rho",
    "max_rho",
    "rms_log_rho",
    "discrepancy",
    "pcc",
    "k3_kl",
    "ess_token",
    "log_ppl_abs_diff",
    "tokens_by_pi_train",
    "mean_rho_by_pi_train",
    "rms_log_rho_by_pi_train",
)


def step_metrics(batch: TokenBatch, scores: Scores, trajectory: Trajectory) -> dict[str, Array]:
    """Return the metrics of one rollout; `scores` are those of the training engine at theta_old."""
    measured = {name: METRICS[name](batch) for name in STEP_METRICS}
    measured |= {
        "reward": jnp.mean(batch.rewards),
        "response_length": jnp.mean(jnp.sum(batch.mask, axis=1, dtype=jnp.float32)),
        "entropy": masked_mean(scores.entropy, batch.mask),
    }
    if scores.experts is not None and trajectory.experts is not None:
        measured["router_flips"] = router_flips(scores.experts, trajectory)
    return measured


def router_flips(chosen: Array, trajectory: Trajectory) -> Array:
    """Return, per layer [L], how often the set of experts that read a response token differs from `chosen`.

    `chosen` [B, P + T - 1, L, top_k] is the training engine's own choice; the order within a set is ignored.
    """
    assert trajectory.experts is not None
    start = trajectory.prompts.shape[1] - 1
    ours, theirs = (jnp.sort(x[:, start:], axis=-1) for x in (chosen, trajectory.experts))
    flipped = jnp.any(ours != theirs, axis=-1).astype(jnp.float32)
    mask = trajectory.mask[..., None].astype(jnp.float32)
    return jnp.sum(flipped * mask, axis=(0, 1)) / jnp.maximum(jnp.sum(mask), 1.0)


def evaluate(
    recipe: Recipe, params: Params, engine: Engine, key: Array, *, split: str = "held_out", prompts: int = 64
) -> dict[str, Array]:
    """Sample `recipe.group_size` responses to each of `prompts` prompts of a split, as `engine` would.

    `avg_at_k` is the mean reward and `pass_at_k` the mean over prompts of the best of the k responses, with
    k = `recipe.group_size`; pass@1 estimated from k samples is `avg_at_k` where rewards are 0 or 1.
    """
    sampled = generate(
        params,
        recipe.model,
        engine,
        recipe.sampler,
        key,
        recipe.task.prompts(stream(key, "prompts"), prompts, split),
        recipe.task.check,
        group_size=recipe.group_size,
        length=recipe.task.response_length,
        end=END,
        pad=PAD,
    )
    by_prompt = sampled.rewards.reshape(prompts, recipe.group_size)
    return {"avg_at_k": jnp.mean(by_prompt), "pass_at_k": jnp.mean(jnp.max(by_prompt, axis=1))}
