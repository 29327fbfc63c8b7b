"""One step: what learns, what stays, and that the loss is the objective's."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines.engine import REPLAYS
from simlab.objectives import TokenBatch, objective_value, prepared, rollout_terms
from simlab.training.optimizer import AdamW
from simlab.training.step import learn, policy_gradient, rollout, score
from tests.tolerances import assert_exact
from tests.training.recipes import COARSE, COARSE_ROUTER, MOE, small_recipe, small_state


@pytest.fixture(scope="module")
def recipe():
    return small_recipe(COARSE, "gspo+tis")


@pytest.fixture(scope="module")
def state(recipe):
    return small_state(recipe)


@pytest.fixture(scope="module")
def trajectory(recipe, state):
    # An untrained policy earns nothing; rewards of our own give it something to learn.
    sampled = jax.jit(rollout)(recipe, state)
    return replace(sampled, rewards=jnp.sum(sampled.responses % 2, axis=1).astype(jnp.float32))


@pytest.fixture(scope="module")
def learned(recipe, state, trajectory):
    return jax.jit(learn)(recipe, state, trajectory)


def token_batch(recipe, params, trajectory, logp):
    logp_train = score(recipe, params, trajectory).logp
    return TokenBatch(
        logp=logp_train if logp is None else logp,
        logp_train=logp_train,
        logp_infer=trajectory.logp_infer,
        rewards=trajectory.rewards,
        mask=trajectory.mask,
        group_size=recipe.group_size,
    )


def test_the_gradient_is_that_of_the_objective(recipe, state, trajectory):
    def objective(params):
        logp = score(recipe, params, trajectory).logp
        return -objective_value(recipe.objective, token_batch(recipe, state.params, trajectory, logp))

    @jax.jit
    def both(params):
        batch = prepared(token_batch(recipe, state.params, trajectory, None))
        terms = rollout_terms(recipe.objective, batch)
        return jax.grad(objective)(params), *policy_gradient(recipe, params, trajectory, batch, terms)

    direct, through_coefficients, norm = both(state.params)
    squared = 0.0
    for a, b in zip(jax.tree.leaves(direct), jax.tree.leaves(through_coefficients), strict=True):
        # One backward pass with the factors in another order: float32 round-off of sums of ~100 terms.
        np.testing.assert_allclose(a, b, atol=100 * 2.0**-24 * np.abs(a).max())
        squared += float((b**2).sum())
    assert squared > 0
    assert np.isclose(norm, np.sqrt(squared), rtol=1e-5)


def test_learning_makes_better_responses_likelier(recipe, state, trajectory, learned):
    after = token_batch(recipe, learned[0].params, trajectory, None).logp_train
    before = token_batch(recipe, state.params, trajectory, None).logp_train
    gain = jnp.sum(jnp.where(trajectory.mask, after - before, 0), axis=1)
    groups = np.asarray(trajectory.rewards).reshape(recipe.prompts, -1)
    advantages = (groups - groups.mean(axis=1, keepdims=True)).ravel()
    assert np.asarray(gain) @ advantages > 0


def test_the_state_moves_on_and_the_key_stays(state, learned):
    after = learned[0]
    assert int(after.step) == int(state.step) + 1
    assert_exact(jax.random.key_data(after.key), jax.random.key_data(state.key))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.params))


def test_metrics_of_a_rollout_with_mismatch(learned):
    metrics = learned[1]
    assert metrics["std_rho"] > 0
    assert metrics["grad_norm"] > 0
    assert metrics["learning_rate_factor"] == 1
    assert metrics["tokens_by_pi_train"].sum() > 0


def test_learning_rate_zero_freezes_the_policy(recipe, state, trajectory):
    frozen = replace(recipe, optimizer=AdamW(learning_rate=0.0))
    after, _ = jax.jit(learn)(frozen, state, trajectory)
    for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(state.params), strict=True):
        assert_exact(a, b)


def test_equal_rewards_teach_nothing(recipe, state, trajectory):
    flat = replace(trajectory, rewards=jnp.ones_like(trajectory.rewards))
    _, metrics = jax.jit(learn)(recipe, state, flat)
    assert metrics["grad_norm"] == 0


def test_extra_terms_enter_the_gradient(state, trajectory):
    recipe = small_recipe(COARSE, "gspo+tis", extra_terms={"entropy": 0.1, "kl": 0.1})
    flat = replace(trajectory, rewards=jnp.ones_like(trajectory.rewards))
    state = small_state(recipe)
    after, metrics = jax.jit(learn)(recipe, state, flat)
    # Only the entropy pulls: away from the reference, against a KL that starts at zero.
    assert metrics["grad_norm"] > 0
    entropies = [float(score(recipe, s.params, flat).entropy.mean()) for s in (state, after)]
    assert entropies[1] > entropies[0]


@pytest.fixture(scope="module")
def routed():
    """A mixture, its state, and a rollout whose engine routes some tokens otherwise than training does."""
    recipe = small_recipe(COARSE_ROUTER, "grpo", model=MOE, optimizer=AdamW(learning_rate=0.1))
    state = small_state(recipe)
    sampled = jax.jit(rollout)(recipe, state)
    sampled = replace(sampled, rewards=jnp.sum(sampled.responses % 2, axis=1).astype(jnp.float32))
    scored = jax.jit(score)
    chosen = scored(recipe, state.params, replace(sampled, experts=None)).experts
    assert bool(jnp.any(chosen != sampled.experts))
    return recipe, state, sampled, chosen, scored


def test_replaying_ones_own_experts_changes_no_bit(routed):
    recipe, state, sampled, chosen, scored = routed
    free = scored(recipe, state.params, replace(sampled, experts=None))
    own = scored(recipe, state.params, replace(sampled, experts=chosen))
    theirs = scored(recipe, state.params, sampled)
    assert_exact(own.logp, free.logp)
    assert bool(jnp.any(theirs.logp != free.logp))
    # What is returned stays the engine's own choice; the first layer reads the same input either way.
    assert_exact(theirs.experts[:, :, 0], chosen[:, :, 0])


def test_r3_scores_with_the_experts_of_the_rollout_and_r2_with_those_of_scoring(routed):
    recipe, state, sampled, _, scored = routed
    learned = jax.jit(learn)

    def mismatch(experts):
        logp = scored(recipe, state.params, replace(sampled, experts=experts)).logp
        log_rho = np.asarray(logp - sampled.logp_infer)[np.asarray(sampled.mask)]
        return np.sqrt(np.mean(log_rho**2))

    results = {
        replay: learned(replace(recipe, engines=replace(recipe.engines, replay=replay)), state, sampled)
        for replay in REPLAYS
    }
    for replay, experts in (("none", None), ("R2", None), ("R3", sampled.experts)):
        # A mean of at most 80 float32 squares, and a square root.
        np.testing.assert_allclose(results[replay][1]["rms_log_rho"], mismatch(experts), rtol=1e-5)
    # R2 is free routing until the first update moves a choice.
    first = {replay: state.params["embedding"] - r[0].params["embedding"] for replay, r in results.items()}
    assert bool(jnp.any(first["R2"] != first["none"]))
    assert bool(jnp.any(first["R2"] != first["R3"]))


@pytest.mark.slow
@pytest.mark.parametrize("model", [None, MOE], ids=["dense", "moe"])
def test_an_exact_pair_has_no_mismatch_at_all(model):
    changes = {} if model is None else {"model": model}
    recipe = small_recipe("bf16-exact/bf16-exact", **changes)
    state = small_state(recipe)
    sampled = jax.jit(rollout)(recipe, state)
    _, metrics = jax.jit(learn)(recipe, state, sampled)
    assert metrics["max_rho"] == metrics["mean_rho"] == 1
    assert metrics["std_rho"] == metrics["discrepancy"] == metrics["log_ppl_abs_diff"] == 0


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"minibatches": 3}, "minibatches 3 does not divide the 4 prompts"),
        ({"extra_terms": {"entropie": 0.1}}, "unknown extra term 'entropie'; allowed: entropy, kl"),
    ],
)
def test_bad_recipes_are_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        small_recipe(**bad)
