"""A run has the same bits whether or not its sweep has other objectives."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from simlab.models.parameters import init_params
from simlab.objectives import OBJECTIVES
from simlab.sweeps import run_config, sweep
from simlab.sweeps.compilation import _learn_leaves, _sample_leaves, _sampled_part, _trajectory_tree
from simlab.sweeps.grids import as_grid
from simlab.sweeps.plan import expand, make_plan
from simlab.sweeps.program import BatchedRun, lone_recipe, stack_members, swept_recipe
from simlab.sweeps.switch_objective import SwitchObjective
from simlab.training.step import learning_recipe, sampling_recipe
from tests.sweeps.small import BASE, RUNS_PER_BATCH, tables
from tests.training.recipes import assert_same_tree

SWITCHED = [name for name, each in OBJECTIVES.items() if "values" not in getattr(each.advantage, "needs", ())]
learn = jax.jit(_learn_leaves)


def plan_of(over):
    runs = expand(BASE, as_grid(over), RUNS_PER_BATCH)
    return make_plan(runs, [run.key for run in runs], RUNS_PER_BATCH)


def count_marked(over) -> int:
    return sum(run.has_lone_objective for group in plan_of(over).groups for run in group.runs)


def test_plan_marks_runs_without_another_objective(monkeypatch):
    numbers = {"objective": ["grpo", {"name": "grpo", "clip_high": 0.4}], "seed": [0, 1]}
    assert count_marked(numbers) == 4
    assert count_marked({"objective": ["grpo", "gspo"]}) == 0
    assert count_marked({"objective": ["grpo", "grpo+tis"]}) == 0
    # Compile groups of their own: these two sort.
    assert count_marked({"objective": ["grpo", "m2po"]}) == 2
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert count_marked(numbers) == 0


def test_lone_recipe_has_the_stages_of_one_objective():
    config = run_config(BASE)
    lone, swept = lone_recipe(config), swept_recipe(config)
    assert lone.objective == replace(OBJECTIVES["grpo"], source="")
    assert isinstance(swept.objective, SwitchObjective)
    assert replace(lone, objective=swept.objective) == swept


def stack_of(recipe):
    runs = [BatchedRun(recipe, init_params(jax.random.key(seed), recipe.model), seed) for seed in (0, 1)]
    return stack_members(runs, 2)


@pytest.fixture(scope="module")
def trajectory():
    """Return the rollouts of two runs, with rewards and a mismatch that reach every stage."""
    recipe, state = stack_of(swept_recipe(run_config(BASE | {"group_size": 4})))
    sampling = sampling_recipe(recipe)
    leaves = jax.jit(_sample_leaves)(sampling, _sampled_part(state))
    sampled = jax.tree.unflatten(_trajectory_tree(sampling), leaves)
    first, second = jax.random.split(jax.random.key(5))
    noise = 0.1 * jax.random.normal(first, sampled.logp_infer.shape)
    logp_infer = jnp.where(sampled.logp_infer == 0, 0.0, jnp.minimum(sampled.logp_infer + noise, 0.0))
    rewards = jax.random.bernoulli(second, 0.4, sampled.rewards.shape).astype(jnp.float32)
    return replace(sampled, logp_infer=logp_infer, rewards=rewards)


@pytest.mark.slow
@pytest.mark.parametrize("name", SWITCHED)
def test_lone_objective_has_the_bits_of_the_switched(name, trajectory):
    config = run_config(BASE | {"group_size": 4, "objective": name})
    results = []
    for recipe in (swept_recipe(config), lone_recipe(config)):
        stacked, state = stack_of(recipe)
        results.append(learn(learning_recipe(stacked), state, trajectory))
    assert_same_tree(*results)


@pytest.mark.slow
def test_bytes_do_not_depend_on_other_objectives(tmp_path):
    alone, among = (
        sweep(BASE, {"objective": each}, tmp_path / each[-1], runs_per_batch=RUNS_PER_BATCH, workers=0)
        for each in (["grpo"], ["grpo", "gspo"])
    )
    (key,) = alone.runs()["run"]
    expected, actual = tables(alone.folder), tables(among.folder)
    for name in (f"{key}.steps.parquet", f"{key}.vectors.parquet", f"{key}.json"):
        assert actual[name] == expected[name]
