"""Evaluate a policy under an engine, on held-out prompts."""

from dataclasses import replace

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from simlab.core.streams import stream
from simlab.engines import Engine
from simlab.engines.constant import ConstantEngine, release_constants
from simlab.models.parameters import Params
from simlab.training.recipe import Recipe
from simlab.training.step import sample_responses, sampling_recipe


def evaluate(
    recipe: Recipe,
    params: Params,
    engine: Engine | ConstantEngine,
    key: Array,
    *,
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
        prompts: number of held-out prompts, drawn with replacement.

    Returns:
        `avg_at_k`, the mean reward; `pass_at_1`, the fraction of all responses that pass; `pass_at_k`, the
        fraction of prompts with a response that passes. Where rewards are 0 or 1, the first two are equal.
    """
    by_prompt = rewards_by_prompt(recipe, params, engine, key, prompts=prompts)
    passes = (by_prompt >= 1).astype(jnp.float32)
    return {
        "avg_at_k": jnp.mean(by_prompt),
        "pass_at_1": jnp.mean(passes),
        "pass_at_k": jnp.mean(jnp.max(passes, axis=1)),
    }


def rewards_by_prompt(
    recipe: Recipe,
    params: Params,
    engine: Engine | ConstantEngine,
    key: Array,
    *,
    prompts: int,
) -> Float[Array, "prompts k"]:
    """Return the rewards of k = `recipe.group_size` responses to each held-out prompt.

    Equal keys draw equal prompts. The arguments are those of `evaluate`.
    """
    sampling = replace(sampling_recipe(recipe), engine=release_constants(engine), vocabulary=False)
    drawn = recipe.task.prompts(stream(key, "prompts"), prompts, "held_out")
    sampled = sample_responses(sampling, params, key, drawn)
    return sampled.rewards.reshape(prompts, recipe.group_size)
