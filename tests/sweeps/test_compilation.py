"""The two compiled functions of a run batch, against one function and against each other."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from simlab.core.json_value import Json
from simlab.models.parameters import init_params
from simlab.sweeps import run_config
from simlab.sweeps.compilation import compile_batch
from simlab.sweeps.program import BatchedRun, stack_members, swept_recipe
from simlab.training.loop import map_updates, read_metrics
from simlab.training.step import learn, rollout
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


def build_members(engines: Json = BASE["engines"], objective: str = "grpo") -> list[BatchedRun]:
    recipe = swept_recipe(run_config(BASE | {"engines": engines, "objective": objective}))
    return [BatchedRun(recipe, init_params(jax.random.key(seed), recipe.model), seed) for seed in (0, 1)]


def advance(members: list[BatchedRun]) -> tuple:
    recipe, state = stack_members(members, 2)
    state, made = compile_batch(recipe, state).advance(STEPS, recipe, state)
    return state, read_metrics(made, along=1)


@pytest.fixture(scope="module")
def traced() -> tuple:
    return advance(build_members())


@pytest.mark.slow
def test_advance_has_the_bits_of_one_function(traced):
    @jax.jit
    def advance_all(recipe, state):
        def step(state, _):
            return map_updates(learn)(recipe, state, jax.vmap(rollout)(recipe, state))

        state, metrics = lax.scan(step, state, None, length=STEPS)
        return state, jax.tree.map(lambda metric: jnp.moveaxis(metric, 0, 1), metrics)

    one = advance_all(*stack_members(build_members(), 2))
    assert_same_tree(jax.tree.map(jnp.asarray, traced), one)


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


def test_each_side_of_a_pair_has_its_own_form():
    single, among = (
        swept_recipe(run_config(BASE | {"engines": pair})).engines
        for pair in ("bf16/vllm-bf16", {"name": "bf16/vllm-bf16", "infer": {"residual": "e5m2"}})
    )
    assert [jax.tree.leaves(single.train), jax.tree.leaves(single.infer)] == [[], []]
    assert jax.tree.leaves(among.train) == []
    assert jax.tree.leaves(among.infer) != []


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
