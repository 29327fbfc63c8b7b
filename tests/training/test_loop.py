"""Chunks, callbacks, runs side by side, forks, warm starts and files: none of them changes a run."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from simlab.models.parameters import init_params
from simlab.objectives import get_objective
from simlab.tasks import TASKS
from simlab.training.checkpoints import DamagedCheckpointError, load_progress, load_tree, save_tree
from simlab.training.critic import Critic
from simlab.training.fork import fork
from simlab.training.loop import (
    CheckpointWriter,
    alternate,
    learn_from,
    map_updates,
    read_metrics,
    resume,
    train,
)
from simlab.training.optimizer import AdamW, clip_norm, global_norm
from simlab.training.recipe import initial_state
from simlab.training.schedules import LengthTriggered, MismatchTriggered
from simlab.training.step import learn, rollout
from simlab.training.warm_start import WarmStart, warm_start
from tests.tolerances import assert_ulp
from tests.training.recipes import DENSE, MOE, QUICK, assert_same_tree, differ, small_recipe, small_state

# Every part of the state that a run may carry, but a critic.
RECIPE = small_recipe(entropy_coeff=0.01, kl_loss_coef=0.1, schedule=LengthTriggered(early=2), staleness=1)


def copied(tree):
    return jax.tree.map(jnp.copy, tree)  # the loop donates its state


@pytest.fixture(scope="module")
def whole():
    """Four steps in two chunks: the state after two, and what follows."""
    half, _ = train(RECIPE, small_state(RECIPE), 2, chunk=2)
    after, metrics = train(RECIPE, copied(half), 2, chunk=2)
    assert differ(half.params, after.params)
    return half, after, metrics


@pytest.fixture(scope="module")
def stopped(whole, tmp_path_factory):
    """The checkpoint of a run of four steps that a callback stopped after two."""
    path = tmp_path_factory.mktemp("stopped") / "run.npz"
    seen = []

    def stop(chunk):
        seen.append(chunk.step)
        assert chunk.metrics["reward"].shape == (2,)
        assert not chunk.is_last
        return True

    state, early = train(RECIPE, small_state(RECIPE), 4, [stop, CheckpointWriter(path, 0)], chunk=2)
    assert seen == [2]
    assert_same_tree(state, whole[0])
    return path, path.read_bytes(), early


def test_train_gives_the_same_bits_in_chunks_and_when_resumed(whole, stopped):
    _, after, metrics = whole
    path, _, early = stopped
    state, history = resume(path, small_state(RECIPE))
    assert_same_tree(history, early)
    last, history = train(RECIPE, state, 4, [CheckpointWriter(path)], chunk=2, history=history)
    late = {name: values[2:] for name, values in history.items()}
    assert_same_tree((last, late), (after, metrics))
    # The last checkpoint holds the complete run: nothing is left to compute, and nothing is lost.
    again, loaded = resume(path, small_state(RECIPE))
    again, loaded = train(RECIPE, again, 4, [pytest.fail], chunk=2, history=loaded)
    assert_same_tree((again, loaded), (last, history))


def test_train_with_a_rollout_outside_of_jit_learns_the_same(whole):
    half, after, metrics = whole

    def sample(recipe, state):
        return jax.jit(rollout)(recipe, state), {"sync_apart": jnp.float32(0.5)}

    last, measured = train(RECIPE, copied(half), 2, chunk=1, advance=learn_from(sample))
    np.testing.assert_array_equal(measured.pop("sync_apart"), [0.5, 0.5])
    # One program or two: sums may be added in another order.
    for name in ("reward", "entropy", "grad_norm"):
        np.testing.assert_allclose(measured[name], metrics[name], rtol=1e-4)
    assert measured.keys() == metrics.keys()
    assert int(last.step) == int(after.step)


def test_resume_rejects_damaged_checkpoints_and_other_runs(stopped, tmp_path):
    path, content, history = tmp_path / "run.npz", *stopped[1:]
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 4
    for damaged in (content[:-3], flipped, b""):
        path.write_bytes(damaged)
        with pytest.raises(DamagedCheckpointError, match=r"run\.npz"):
            load_progress(path)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="a run with another key"):
        resume(path, small_state(RECIPE, seed=2))
    with pytest.raises(ValueError, match=r"steps must be at least the 2 .*, got 1"):
        train(RECIPE, small_state(RECIPE), 1, chunk=1, history=history)
    with pytest.raises(ValueError, match=r"differ in.*reference"):
        resume(path, small_state(replace(RECIPE, entropy_coeff=None, kl_loss_coef=None)))


def test_fork_without_a_change_gives_the_same_run(whole):
    half, after, metrics = whole
    assert_same_tree(train(RECIPE, fork(half, RECIPE), 2, chunk=2), (after, metrics))


def test_fork_keeps_rollout_when_learning_rate_changes(whole):
    half, after, metrics = whole
    faster = replace(RECIPE, optimizer=AdamW(learning_rate=1e-2))
    other, measured = train(faster, fork(half, faster), 2, chunk=2)
    for name in ("reward", "response_length", "entropy", "abs_seq_log_ratio", "mean_rho_by_pi_train"):
        np.testing.assert_array_equal(measured[name][0], metrics[name][0])
    assert differ(other.params, after.params)
    assert measured["grad_norm"][1] != metrics["grad_norm"][1]


def test_learning_rate_zero_freezes_the_policy_and_nothing_else(whole):
    half = whole[0]
    frozen = replace(RECIPE, optimizer=AdamW(learning_rate=0.0))
    after, metrics = train(frozen, fork(half, frozen), 2, chunk=2)
    assert_same_tree(after.params, half.params)
    assert differ(after.opt_state, half.opt_state)
    assert (np.asarray(metrics["grad_norm"]) > 0).all()
    assert int(after.step) == int(half.step) + 2


def test_a_frozen_policy_stays_whatever_the_gradient_is():
    params = {"w": jnp.asarray([-0.0, 1.0, 2.0])}
    frozen = AdamW(learning_rate=0.0)
    for bad in ([-1.0, 1.0, 1.0], [jnp.nan, jnp.inf, 1.0]):
        after, _ = frozen.update({"w": jnp.asarray(bad)}, frozen.init(params), params, 1.0)
        assert_same_tree(after, params)


def test_what_only_one_recipe_has_starts_afresh_or_is_dropped(whole):
    half = whole[0]
    changed = replace(
        RECIPE,
        entropy_coeff=None,
        kl_loss_coef=None,
        schedule=MismatchTriggered(),
        objective=get_objective("ppo"),
        critic=Critic(),
        staleness=3,
    )
    forked = fork(half, changed)
    for name in ("params", "opt_state", "step", "key"):
        assert_same_tree(getattr(forked, name), getattr(half, name))
    assert forked.reference is None
    assert_same_tree(forked.schedule_state, MismatchTriggered().init())
    assert_same_tree(forked.critic.params["body"], half.params)
    assert_same_tree(forked.past_params, jax.tree.map(lambda x: jnp.stack([x] * 3), half.params))
    back = fork(forked, RECIPE)
    assert_same_tree(back.reference, half.params)
    assert back.critic is None
    assert_same_tree(fork(forked, replace(changed, staleness=2)).critic, forked.critic)
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), half)
    together = jax.vmap(lambda state: fork(state, changed))(stacked)
    assert_same_tree(jax.tree.map(lambda x: x[1], together), forked)


def test_fork_rejects_another_model(whole):
    with pytest.raises(ValueError, match="not those of the recipe's model"):
        fork(whole[0], replace(RECIPE, model=MOE))


def test_many_seeds_side_by_side():
    states = [small_state(RECIPE, seed) for seed in (1, 2)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    _, side_by_side = train(RECIPE, stacked, 2, chunk=2, axes=(None, 0))
    assert side_by_side["entropy"].shape == (2, 2)
    for row, state in zip(side_by_side["entropy"], states, strict=True):
        _, alone = train(RECIPE, state, 2, chunk=2)
        # Batched products may add in another order; a token rarely flips in two steps.
        np.testing.assert_allclose(row, alone["entropy"], rtol=1e-3)
    assert (side_by_side["entropy"][0] != side_by_side["entropy"][1]).all()


def test_the_loop_spends_no_array_of_the_caller():
    params, key = init_params(jax.random.key(0), DENSE), jax.random.key(1)
    train(RECIPE, initial_state(RECIPE, params, key), 2, chunk=2)
    assert not params["embedding"].is_deleted()
    assert not key.is_deleted()


def test_metrics_of_a_chunk_come_in_one_transfer(monkeypatch):
    transfers, fetch = [], jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda tree: transfers.append(tree) or fetch(tree))
    state, made = alternate(
        lambda state: (state + 1, {"measured": jnp.float32(0.5)}),
        lambda state, data: (data, {"sum": state + data}),
        jnp.float32(0),
        3,
    )
    assert not transfers
    metrics = read_metrics(made)
    assert len(transfers) == 1
    assert (float(state), metrics["sum"].tolist()) == (3, [1, 3, 5])
    assert metrics["measured"].tolist() == [0.5, 0.5, 0.5]


@pytest.fixture
def follow_chunks():
    """Return a function that runs `train` on four chunks of two steps, and says in which order."""

    def follow(callbacks=(), stops=False):
        order = []

        def advance(_, state):
            order.append(f"start {state}")
            return state + 2, [{"step": np.int32(state)}, {"step": np.int32(state + 1)}]

        def watch(progress):
            order.append(f"see {progress.step - 2}")
            return stops

        state, metrics = train(None, 0, 8, callbacks, watch=watch, chunk=2, advance=advance)
        assert metrics["step"].tolist() == list(range(state))
        return order

    return follow


def test_next_chunk_starts_before_metrics_are_read(follow_chunks):
    ahead = ["start 0", "start 2", "see 0", "start 4", "see 2", "start 6", "see 4", "see 6"]
    assert follow_chunks() == ahead
    # The chunk that has started is part of the run.
    assert follow_chunks(stops=True) == ["start 0", "start 2", "see 0", "see 2"]


def test_a_callback_sees_the_state_before_the_next_chunk(follow_chunks):
    states = []
    order = follow_chunks([lambda chunk: states.append(chunk.state)])
    assert order == ["start 0", "see 0", "start 2", "see 2", "start 4", "see 4", "start 6", "see 6"]
    assert states == [2, 4, 6, 8]


def test_chunks_must_divide_the_steps():
    with pytest.raises(ValueError, match="chunk must divide the 4 steps to run, got 3"):
        train(RECIPE, small_state(RECIPE), 4, chunk=3)


def test_adamw_is_that_of_optax():
    numbers = AdamW(learning_rate=0.1, weight_decay=0.3, max_grad_norm=0.5)
    reference = optax.chain(
        optax.clip_by_global_norm(0.5), optax.adamw(0.1 * 0.25, b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.3)
    )
    params = {"w": jnp.asarray([1.0, -2.0, 3.0])}
    ours = theirs = params
    opt_state, other = numbers.init(params), reference.init(params)
    for step in range(3):
        grads = jax.tree.map(lambda w, step=step: jnp.sin(w + step), params)
        ours, opt_state = numbers.update(grads, opt_state, ours, 0.25)
        with jax.numpy_dtype_promotion("standard"):
            updates, other = reference.update(grads, other, theirs)
        theirs = optax.apply_updates(theirs, updates)
    np.testing.assert_allclose(ours["w"], theirs["w"], rtol=1e-6)


@pytest.mark.parametrize("size", [0.1, 10.0])
def test_clip_norm_has_the_bits_of_optax(size):
    grads = {"a": size * jnp.asarray([[0.3, -0.7], [0.1, 0.9]]), "b": size * jnp.arange(3.0)}
    ours = jax.jit(lambda grads: clip_norm(grads, 0.5))(grads)
    clip = optax.clip_by_global_norm(0.5)
    assert_same_tree(ours, jax.jit(lambda grads: clip.update(grads, clip.init(grads))[0])(grads))


def test_global_norm_on_a_gpu_is_that_of_the_leaves(monkeypatch):
    grads = {"a": jnp.asarray([[0.3, -0.7], [0.1, 0.9]]), "b": jnp.arange(3.0)}
    expected = global_norm(grads)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    # Two orders of six additions; the root halves their error.
    assert_ulp(global_norm(grads), expected, 8)


def test_warm_starts_learn_and_survive_on_disk(tmp_path):
    task = TASKS["sort"](difficulty=2, train_size=64, held_out_size=16)
    how = WarmStart(steps=60, batch=32, demo_error_rate=0.0)
    teach = jax.jit(warm_start, static_argnums=(0, 1), compiler_options=QUICK)
    params, losses = teach(task, DENSE, how, jax.random.key(0))
    assert losses[-5:].mean() < 0.4 * losses[0]
    assert bool(
        (teach(task, DENSE, replace(how, min_lr_ratio=1.0), jax.random.key(0))[1][-5:] != losses[-5:]).all()
    )
    path = save_tree(tmp_path / "params.npz", params)
    assert_same_tree(load_tree(path, params), params)
    with pytest.raises(ValueError, match="differ in"):
        load_tree(path, {**params, "more": params["norm"]})
    with pytest.raises(ValueError, match=r"is float32\(32,\), not float32\(31,\)"):
        load_tree(path, {**params, "norm": params["norm"][1:]})


@pytest.mark.parametrize(("axes", "backend", "loops"), [(0, "cpu", 1), ((0, None), "cpu", 0), (0, "gpu", 0)])
def test_map_updates_loops_over_stacked_runs_on_a_cpu(axes, backend, loops, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    state, data = jnp.arange(6.0).reshape(3, 2), jnp.ones((3, 2))
    other = data if axes == 0 else data[0]

    def update(state, data):
        return state + data, {"sum": jnp.sum(state)}

    mapped = map_updates(update, axes)
    after, metrics = mapped(state, other)
    np.testing.assert_array_equal(after, state + 1)
    np.testing.assert_array_equal(metrics["sum"], [1.0, 5.0, 9.0])
    assert str(jax.make_jaxpr(mapped)(state, other)).count("scan[") == loops


@pytest.mark.slow
def test_an_update_does_not_depend_on_the_runs_beside_it():
    states = [small_state(RECIPE, seed) for seed in range(3)]
    trajectories = [jax.jit(rollout)(RECIPE, state) for state in states]
    update = jax.jit(map_updates(learn))

    def updated(count):
        runs = [(RECIPE, *run) for run in zip(states, trajectories, strict=True)][:count]
        return update(*jax.tree.map(lambda *leaves: jnp.stack(leaves), *runs))

    three, one = updated(3), updated(1)
    assert_same_tree(jax.tree.map(lambda leaf: leaf[:1], three), one)
    assert differ(jax.tree.map(lambda leaf: leaf[0], three[0].params), states[0].params)
