"""The two compiled functions of a run batch, against one function and against each other."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from simlab.models.parameters import init_params
from simlab.sweeps import run_config
from simlab.sweeps.compilation import compile_batch
from simlab.sweeps.compile_cache import fixed_order_options
from simlab.sweeps.program import BatchedRun, hold_engines, stack_members, swept_recipe
from simlab.training.step import train_step
from tests.sweeps.small import BASE
from tests.training.recipes import assert_same_tree

STEPS = 2


def build_members(residual: str = "e5m2", objective: str = "grpo") -> list[BatchedRun]:
    engines = {"name": "f32/f32", "infer": {"residual": residual}}
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


def test_advance_has_the_same_bits_with_constant_engines(traced):
    assert_same_tree(advance(hold_engines(build_members())), traced)


def test_compile_batch_shares_learn_between_inference_engines(traced):
    del traced
    first, second = (
        compile_batch(*stack_members(hold_engines(build_members(fmt)), 2)) for fmt in ("e5m2", "e4m3")
    )
    assert first.learn is second.learn
    assert first.sample is not second.sample


def test_compile_batch_shares_both_between_objectives(traced):
    del traced
    first, second = (compile_batch(*stack_members(build_members(objective=o), 2)) for o in ("grpo", "gspo"))
    assert (first.learn, first.sample) == (second.learn, second.sample)


def test_hold_engines_keeps_different_engines_as_data():
    members = [build_members("e5m2")[0], build_members("e4m3")[0]]
    assert hold_engines(members) == members
