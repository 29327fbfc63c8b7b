"""Recipes small enough to compile and run in a test."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from simlab.engines import Engine, EnginePair, Site, find_pair
from simlab.models.config import TransformerConfig
from simlab.models.parameters import init_params
from simlab.objectives import get_objective
from simlab.tasks.sequences import Recurrence
from simlab.training.recipe import Recipe, TrainState, initial_state
from tests.compiling import QUICK as QUICK
from tests.tolerances import assert_exact

DENSE = TransformerConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
MOE = replace(DENSE, num_experts=4)

# A mismatch that is cheap to compile: one site only.
COARSE = EnginePair(Engine(), replace(Engine(), residual=Site.of("e5m2", "toward_zero")))

COARSE_ROUTER = EnginePair(
    Engine(), replace(Engine(), router=replace(Engine().router, output=Site.of("e2m1")))
)


@dataclass(frozen=True, kw_only=True)
class OddTokens(Recurrence):
    """Pays for odd tokens, so that an untrained policy earns something."""

    def reward(self, prompt, response):
        del prompt
        return jnp.mean(response % 2, dtype=jnp.float32)


TASK = OddTokens(difficulty=4, train_size=32, held_out_size=8)


def small_recipe(pair: str | EnginePair = "f32/f32", objective: str = "grpo", **changes) -> Recipe:
    defaults = {"task": TASK, "model": DENSE, "prompts_per_step": 4, "group_size": 4, "minibatches": 2}
    return Recipe(engines=find_pair(pair), objective=get_objective(objective), **(defaults | changes))


def small_state(recipe: Recipe, seed: int = 1) -> TrainState:
    params = init_params(jax.random.key(0), recipe.model)
    return initial_state(recipe, params, jax.random.key(seed))


def assert_same_tree(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        raw = [jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (a, b)]
        assert_exact(*raw)


def differ(one, other) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(bool(jnp.any(a != b)) for a, b in leaves)


def rms(x, mask) -> float:
    return float(jnp.sqrt(jnp.sum(jnp.where(mask, x, 0) ** 2) / jnp.sum(mask, dtype=jnp.float32)))
