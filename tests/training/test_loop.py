"""Chunks, runs side by side, warm starts and files: none of them changes a run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from simlab.models.parameters import init_params
from simlab.tasks import TASKS
from simlab.training.checkpoints import load_tree, save_tree
from simlab.training.loop import train
from simlab.training.optimizer import AdamW
from simlab.training.recipe import initial_state
from simlab.training.schedules import SCHEDULES, Constant, Cosine, Linear
from simlab.training.warm_start import WarmStart, warm_start
from tests.tolerances import assert_exact
from tests.training.recipes import DENSE, small_recipe, small_state


def copied(tree):
    return jax.tree.map(jnp.copy, tree)  # the loop donates its state


def assert_same_tree(actual, expected):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        raw = [jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (a, b)]
        assert_exact(*raw)


def test_a_resumed_run_is_the_same_run(tmp_path):
    recipe = small_recipe()
    state = small_state(recipe)
    whole = list(train(recipe, copied(state), 4, chunk=2))
    assert len(whole) == 2
    assert whole[0][1]["reward"].shape == (2,)
    # The state of the first chunk went into the second, donated; so make it once more.
    (half,) = train(recipe, copied(state), 2, chunk=2)
    path = save_tree(tmp_path / "state.npz", half[0])
    ((resumed, metrics),) = train(recipe, load_tree(path, state), 2, chunk=2)
    assert_same_tree(resumed, whole[1][0])
    assert_same_tree(metrics, whole[1][1])


def test_many_seeds_side_by_side():
    recipe = small_recipe()
    states = [small_state(recipe, seed) for seed in (1, 2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    ((_, side_by_side),) = train(recipe, stacked, 2, chunk=2, axes=(None, 0))
    assert side_by_side["entropy"].shape == (2, 2)
    for row, state in zip(side_by_side["entropy"], states, strict=True):
        ((_, alone),) = train(recipe, state, 2, chunk=2)
        # Batched products may add in another order; a token rarely flips in two steps.
        np.testing.assert_allclose(row, alone["entropy"], rtol=1e-3)
    assert (side_by_side["entropy"][0] != side_by_side["entropy"][1]).all()


def test_the_loop_spends_no_array_of_the_caller():
    recipe = small_recipe(extra_terms={"kl": 0.1})
    params, key = init_params(jax.random.key(0), DENSE), jax.random.key(1)
    next(train(recipe, initial_state(recipe, params, key), 2, chunk=2))
    assert not params["embedding"].is_deleted()
    assert not key.is_deleted()


def test_chunks_must_divide_the_steps():
    recipe = small_recipe()
    with pytest.raises(ValueError, match="chunk 3 does not divide the 4 steps"):
        next(train(recipe, small_state(recipe), 4, chunk=3))


@pytest.mark.parametrize(
    ("schedule", "points"),
    [
        (Constant(), {0: 1.0, 99: 1.0}),
        (Constant(warmup=4), {0: 0.25, 1: 0.5, 3: 1.0, 9: 1.0}),
        (Linear(steps=10, final=0.2), {0: 1.0, 5: 0.6, 10: 0.2, 50: 0.2}),
        (Linear(steps=10, warmup=2), {0: 0.5, 2: 1.0, 6: 0.5, 10: 0.0}),
        (Cosine(steps=10, final=0.2), {0: 1.0, 5: 0.6, 10: 0.2, 50: 0.2}),
    ],
)
def test_schedules(schedule, points):
    for step, factor in points.items():
        assert np.isclose(jax.jit(lambda s, t: s(t))(schedule, jnp.int32(step)), factor, atol=1e-6)


def test_every_schedule_runs_in_a_recipe():
    for schedule in SCHEDULES.values():
        made = schedule() if schedule is Constant else schedule(steps=10)
        assert 0 <= float(made(jnp.int32(3))) <= 1


def test_adamw_is_that_of_optax():
    numbers = AdamW(learning_rate=0.1, weight_decay=0.3, max_grad_norm=0.5)
    reference = optax.chain(
        optax.clip_by_global_norm(0.5), optax.adamw(0.1 * 0.25, b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.3)
    )
    params = {"w": jnp.asarray([1.0, -2.0, 3.0])}
    ours = theirs = params
    moments, other = numbers.init(params), reference.init(params)
    for step in range(3):
        grads = jax.tree.map(lambda w, step=step: jnp.sin(w + step), params)
        ours, moments = numbers.update(grads, moments, ours, 0.25)
        with jax.numpy_dtype_promotion("standard"):
            updates, other = reference.update(grads, other, theirs)
        theirs = optax.apply_updates(theirs, updates)
    np.testing.assert_allclose(ours["w"], theirs["w"], rtol=1e-6)


def test_warm_starts_learn_and_survive_on_disk(tmp_path):
    task = TASKS["sort"](difficulty=2, train_size=64, held_out_size=16)
    how = WarmStart(steps=60, batch=32, mistakes=0.0)
    params, losses = jax.jit(warm_start, static_argnums=(0, 1))(task, DENSE, how, jax.random.key(0))
    assert losses[-5:].mean() < 0.4 * losses[0]
    path = save_tree(tmp_path / "params.npz", params)
    assert_same_tree(load_tree(path, params), params)
    with pytest.raises(ValueError, match="differ in"):
        load_tree(path, {**params, "more": params["norm"]})
    with pytest.raises(ValueError, match=r"is float32\(32,\), not float32\(31,\)"):
        load_tree(path, {**params, "norm": params["norm"][1:]})
