"""Evaluate a policy under an engine, on prompts of either split."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PyTree

from simlab.core.streams import stream
from simlab.engines import Engine
from simlab.engines.constant import ConstantEngine, release_constants
from simlab.models.parameters import Params
from simlab.rollout.generate import generate
from simlab.tasks import EOS_TOKEN_ID, PAD_TOKEN_ID
from simlab.training.recipe import Recipe


def evaluate(
    recipe: Recipe,
    params: Params,
    engine: Engine | ConstantEngine,
    key: Array,
    *,
    split: str = "held_out",
    prompts: int = 64,
) -> dict[str, Float[Array, ""]]:
    """Sample k = `recipe.group_size` responses per prompt and measure their rewards.

    A response passes if its reward is 1. For greedy decoding evaluate
    `replace(recipe, sampling=GREEDY, group_size=1)`.

    Args:
        recipe: task, model, sampling and group size.
        params: of the policy.
        engine: the engine that samples.
        key: of prompts and tokens.
        split: `train` or `held_out`.
        prompts: number of prompts, drawn with replacement.

    Returns:
        `avg_at_k`, the mean reward; `pass_at_1`, the fraction of all responses that pass; `pass_at_k`, the
        fraction of prompts with a response that passes. Where rewards are 0 or 1, the first two are equal.

    Raises:
        ValueError: For an unknown split.
    """
    released: PyTree = release_constants(engine)
    sampled = generate(
        params,
        recipe.model,
        released,
        recipe.sampling,
        key,
        recipe.task.prompts(stream(key, "prompts"), prompts, split),
        recipe.task.check,
        group_size=recipe.group_size,
        length=recipe.task.response_length,
        end=EOS_TOKEN_ID,
        pad=PAD_TOKEN_ID,
    )
    by_prompt = sampled.rewards.reshape(prompts, recipe.group_size)
    passes = (by_prompt >= 1).astype(jnp.float32)
    return {
        "avg_at_k": jnp.mean(by_prompt),
        "pass_at_1": jnp.mean(passes),
        "pass_at_k": jnp.mean(jnp.max(passes, axis=1)),
    }
