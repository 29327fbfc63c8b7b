"""The two compiled functions of a run batch, against one function and against each other."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from simlab.core.json_value import Json
from simlab.models.parameters import init_params
from simlab.sweeps import run_config
from simlab.sweeps.compilation import compile_batch
from simlab.sweeps.compile_cache import fixed_order_options
from simlab.sweeps.program import BatchedRun, stack_members, swept_recipe
from simlab.training.step import train_step
from tests.sweeps.small import BASE
from tests.training.recipes import assert_same_tree

STEPS = 2


def build_members(engines: Json = BASE["engines"], objective: str = "grpo") -> list[BatchedRun]:
    recipe = swept_recipe(run_config(BASE | {"engines": engines, "objective": objective}))
    return [BatchedRun(recipe, init_params(jax.random.key(seed), recipe.model), seed) for seed in (0, 1)]


def advance(members: list[BatchedRun]) -> tuple:
    recipe, state = stack_members(members, 2)
    return compile_batch(recipe, state).advance(STEPS, recipe, state)


@pytest.fixture(scope="module")
def traced() -> tuple:
    return advance(build_members())


def test_advance_has_the_bits_of_one_function(traced):
    def steps(recipe, state):
        return lax.scan(lambda state, _: train_step(recipe, state), state, None, length=STEPS)

    one = jax.jit(jax.vmap(steps), compiler_options=fixed_order_options())
    assert_same_tree(jax.tree.map(jnp.asarray, traced), one(*stack_members(build_members(), 2)))


def test_compile_batch_shares_learn_between_inference_engines(traced):
    del traced
    pairs = BASE["engines"], "f32/f32"
    first, second = (compile_batch(*stack_members(build_members(pair), 2)) for pair in pairs)
    assert first.learn is second.learn
    assert first.sample is not second.sample


def test_compile_batch_shares_both_between_objectives(traced):
    del traced
    first, second = (compile_batch(*stack_members(build_members(objective=o), 2)) for o in ("grpo", "gspo"))
    assert (first.learn, first.sample) == (second.learn, second.sample)
