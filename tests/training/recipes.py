"""Recipes small enough to compile and run in a test."""

from dataclasses import replace

import jax

from simlab.engines import Engine, EnginePair, Site, find_pair
from simlab.models.config import TransformerConfig
from simlab.models.parameters import init_params
from simlab.objectives import named
from simlab.tasks import TASKS
from simlab.training.recipe import Recipe, TrainState, initial_state

DENSE = TransformerConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
MOE = replace(DENSE, num_experts=4)

# A mismatch that is cheap to compile: one site only.
COARSE = EnginePair(Engine(), replace(Engine(), residual=Site.of("e5m2", "toward_zero")))

COARSE_ROUTER = EnginePair(
    Engine(), replace(Engine(), router=replace(Engine().router, output=Site.of("e2m1")))
)


def small_recipe(pair: str | EnginePair = "f32/f32", objective: str = "grpo", **changes) -> Recipe:
    task = TASKS["recurrence"](difficulty=4, train_size=32, held_out_size=8)
    defaults = {"task": task, "model": DENSE, "prompts": 4, "group_size": 4, "minibatches": 2}
    return Recipe(engines=find_pair(pair), objective=named(objective), **(defaults | changes))


def small_state(recipe: Recipe, seed: int = 1) -> TrainState:
    params = init_params(jax.random.key(0), recipe.model)
    return initial_state(recipe, params, jax.random.key(seed))
