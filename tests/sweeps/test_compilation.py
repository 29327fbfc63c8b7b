"""The two compiled functions of a run batch, against one function and against each other."""

import json
import os
import subprocess
import sys

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
# A sweep in a process of its own, with the folder of compiled functions of a user. The last line counts the
# functions that are compiled and those that are found.
SCRIPT = """
import collections, json, sys
import jax
from simlab.sweeps import sweep
counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.rpartition("/")[2]]))
base, seed, out = json.loads(sys.argv[1])
sweep(base, {"seed": [seed]}, out, runs_per_batch=2, workers=0)
print(json.dumps(counts))
"""


def build_members(residual: str = "e5m2", objective: str = "grpo") -> list[BatchedRun]:
    engines = {"name": "f32/f32", "infer": {"residual": residual}}
    recipe = swept_recipe(run_config(BASE | {"engines": engines, "objective": objective}))
    return [BatchedRun(recipe, init_params(jax.random.key(seed), recipe.model), seed) for seed in (0, 1)]


FLAGSHIP = {
    "task": {"name": "add"},
    "model": {"name": "tiny-dense"},
    "prompts_per_step": 8,
    "group_size": 16,
    "minibatches": 4,
}


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair", ["f32/fp8-e4m3-truncated-all", "bf16/vllm-bf16", "f32/nvfp4", "fp8-block128/fp8-block128"]
)
def test_advance_has_the_same_bits_with_constants_at_full_size(pair):
    recipe = swept_recipe(run_config(BASE | FLAGSHIP | {"engines": pair}))
    members = [BatchedRun(recipe, init_params(jax.random.key(seed), recipe.model), seed) for seed in (0, 1)]
    assert_same_tree(advance(hold_engines(members)), advance(members))


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


def count_compilations(folder, seed: int) -> dict[str, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment["SIMLAB_CACHE"] = str(folder / "cache")
    given = json.dumps([BASE, seed, str(folder / str(seed))])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, given], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_second_process_compiles_nothing(tmp_path):
    first, second = (count_compilations(tmp_path, seed) for seed in (0, 1))
    assert first["cache_misses"] >= 2
    assert second.get("cache_misses", 0) == 0
    assert second["cache_hits"] >= 2
