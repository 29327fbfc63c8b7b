"""What is measured at every step, and the evaluation that is too dear for it."""

import jax.numpy as jnp
from jax import Array

from simlab.core.streams import stream
from simlab.engines import Engine
from simlab.metrics import METRICS
from simlab.models.parameters import Params
from simlab.objectives import TokenBatch
from simlab.objectives.batch import masked_mean
from simlab.rollout.generate import generate
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


def step_metrics(batch: TokenBatch, entropy: Array) -> dict[str, Array]:
    """Return the metrics of one rollout; `entropy` [B, T] is that of the training engine at theta_old."""
    measured = {name: METRICS[name](batch) for name in STEP_METRICS}
    return measured | {
        "reward": jnp.mean(batch.rewards),
        "response_length": jnp.mean(jnp.sum(batch.mask, axis=1, dtype=jnp.float32)),
        "entropy": masked_mean(entropy, batch.mask),
    }


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
