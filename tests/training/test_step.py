"""One step: what learns, what stays, and that the loss is the objective's."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import Site, store
from simlab.engines.engine import REPLAYS
from simlab.metrics.pressure import clipped_tokens
from simlab.models.transformer import SCANNED_LAYERS
from simlab.objectives import TokenBatch, objective_value, prepare_batch, resolve, rollout_terms
from simlab.sweeps.switch_objective import as_switch_objective
from simlab.training.critic import Critic
from simlab.training.loop import train
from simlab.training.optimizer import AdamW
from simlab.training.step import (
    learn,
    policy_gradient,
    rollout,
    round_gradient,
    score,
    score_rollout,
)
from simlab.training.step import token_batch as token_batch_of
from tests.compiling import compile_quickly
from tests.tolerances import assert_exact
from tests.training.recipes import (
    COARSE,
    COARSE_ROUTER,
    DENSE,
    MOE,
    QUICK,
    assert_same_tree,
    differ,
    rms,
    small_recipe,
    small_state,
)

roll, scored, learned_from = (jax.jit(f, compiler_options=QUICK) for f in (rollout, score, learn))
OFF = {"entropy_coeff": 0.0, "kl_loss_coef": 0.0}


@pytest.fixture(scope="module")
def recipe():
    # Coefficients are data: the tests below switch the terms on without another program.
    return small_recipe(COARSE, "gspo+tis", **OFF)


@pytest.fixture(scope="module")
def state(recipe):
    return small_state(recipe)


@pytest.fixture(scope="module")
def trajectory(recipe, state):
    return roll(recipe, state)


@pytest.fixture(scope="module")
def learned(recipe, state, trajectory):
    return learned_from(recipe, state, trajectory)


def token_batch(recipe, params, trajectory):
    logp = scored(recipe, params, trajectory).logp
    return prepare_batch(
        TokenBatch(
            logp=logp,
            logp_train=logp,
            logp_infer=trajectory.logp_infer,
            rewards=trajectory.rewards,
            mask=trajectory.mask,
            group_size=recipe.group_size,
        )
    )


def test_the_gradient_is_that_of_the_objective(recipe, state, trajectory):
    recipe = replace(recipe, entropy_coeff=None, kl_loss_coef=None)
    batch = token_batch(recipe, state.params, trajectory)

    def objective(params):
        logp = score(recipe, params, trajectory).logp
        return -objective_value(recipe.objective, replace(batch, logp=logp))

    @partial(jax.jit, compiler_options=QUICK)
    def both(params):
        terms = rollout_terms(recipe.objective, batch)
        return jax.grad(objective)(params), *policy_gradient(recipe, params, trajectory, batch, terms)

    direct, through_coefficients, metrics = both(state.params)
    squared = 0.0
    for a, b in zip(jax.tree.leaves(direct), jax.tree.leaves(through_coefficients), strict=True):
        # One backward pass with the factors in another order: float32 round-off of sums of ~100 terms.
        np.testing.assert_allclose(a, b, atol=100 * 2.0**-24 * np.abs(a).max())
        squared += float((b**2).sum())
    assert squared > 0
    assert np.isclose(metrics["grad_norm"], np.sqrt(squared), rtol=1e-5)


@pytest.mark.parametrize("is_switched", [False, True])
@pytest.mark.parametrize("name", ["grpo+mis", "grpo+mis+rollout_kl"])
def test_clip_fractions_are_those_of_the_metrics(recipe, state, trajectory, name, is_switched):
    objective = resolve(name, clip_low=1e-4, clip_high=1e-4, correction_clip=1.01)
    clipped = replace(recipe, objective=objective, entropy_coeff=None, kl_loss_coef=None)
    batch = token_batch(clipped, state.params, trajectory)
    signs = np.where(np.arange(batch.mask.shape[1]) % 3 == 0, 0.0, [[1], [-1]] * (len(batch.mask) // 2))
    moved = replace(batch, logp_train=jnp.where(batch.mask, batch.logp - 0.01 * signs, 0.0))

    @partial(jax.jit, compiler_options=QUICK)
    def both(params):
        terms = rollout_terms(clipped.objective, moved)
        stepped = replace(clipped, objective=as_switch_objective(objective) if is_switched else objective)
        _, metrics = policy_gradient(stepped, params, trajectory, moved, terms)
        kept = replace(clipped.objective, correction=None)
        removed = terms.correction == 0
        return metrics, clipped_tokens(kept, moved) & ~removed, removed, terms.advantages

    metrics, tokens, removed, advantages = both(state.params)
    assert bool(removed.any())
    fractions = {"": tokens, "_positive": tokens & (advantages > 0), "_negative": tokens & (advantages < 0)}
    for sign, part in fractions.items():
        assert part.any()
        assert np.isclose(metrics[f"clip_fraction{sign}"], part.sum() / batch.mask.sum(), rtol=1e-6)


def test_learning_makes_better_responses_likelier(recipe, state, trajectory, learned):
    after = token_batch(recipe, learned[0].params, trajectory).logp_train
    before = token_batch(recipe, state.params, trajectory).logp_train
    assert differ(learned[0].params, state.params)
    gain = jnp.sum(jnp.where(trajectory.mask, after - before, 0), axis=1)
    groups = np.asarray(trajectory.rewards).reshape(recipe.prompts_per_step, -1)
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


def test_equal_rewards_teach_nothing(recipe, state, trajectory):
    flat = replace(trajectory, rewards=jnp.ones_like(trajectory.rewards))
    _, metrics = learned_from(recipe, state, flat)
    assert metrics["grad_norm"] == 0


def test_the_entropy_bonus_raises_the_entropy(recipe, state, trajectory):
    flat = replace(trajectory, rewards=jnp.ones_like(trajectory.rewards))
    pulled = replace(recipe, entropy_coeff=0.1)
    after, _ = learned_from(pulled, state, flat)
    before, later = (
        float(jnp.sum(jnp.where(flat.mask, scored(recipe, s.params, flat).entropy, 0)))
        for s in (state, after)
    )
    assert later > before


def test_the_kl_term_leads_back_to_the_reference(recipe, state, trajectory):
    flat = replace(trajectory, rewards=jnp.ones_like(trajectory.rewards))
    # One minibatch: AdamW would make a whole step of what a first one leaves by rounding.
    pulled = replace(recipe, minibatches=1, kl_loss_coef=0.1)
    # At the reference itself the KL is at its minimum.
    assert learned_from(pulled, state, flat)[1]["grad_norm"] < 1e-6
    away = replace(state, params=jax.tree.map(lambda w: 1.2 * w, state.params))
    after, metrics = learned_from(pulled, away, flat)
    assert metrics["grad_norm"] > 0.001

    def divergence(params):
        log_ratio = scored(recipe, state.params, flat).logp - scored(recipe, params, flat).logp
        return float(jnp.sum(jnp.where(flat.mask, jnp.expm1(log_ratio) - log_ratio, 0)))

    assert divergence(after.params) < divergence(away.params)


@pytest.fixture(scope="module")
def asynchronous():
    """Forced copying, a rollout one step old and a rounded gradient, in one step with one minibatch."""
    recipe = small_recipe(
        COARSE,
        "grpo",
        old_log_probs="rollout",
        staleness=1,
        gradient_site=Site.of("bf16"),
        minibatches=1,
        # Without memory and clipping the first moment is the gradient.
        optimizer=AdamW(beta1=0.0, max_grad_norm=1e9),
    )
    state = small_state(recipe)
    past = jax.tree.map(lambda w: 1.1 * w, state.params)
    return recipe, replace(state, past_params=jax.tree.map(lambda w: w[None], past)), past


@pytest.fixture(scope="module")
def old_rollout(asynchronous):
    recipe, state, _ = asynchronous
    return roll(recipe, state)


def test_rollout_uses_past_parameters_when_stale(asynchronous, old_rollout):
    recipe, state, past = asynchronous
    assert_same_tree(roll(recipe, replace(state, params=past)), old_rollout)
    now = replace(state, past_params=jax.tree.map(lambda w: w[None], state.params))
    assert differ(roll(recipe, now).logp_infer, old_rollout.logp_infer)


def test_bypass_mode_hides_mismatch_but_not_in_gradient(asynchronous, old_rollout):
    recipe, state, past = asynchronous
    exact_gradient = replace(recipe, gradient_site=Site.of("fp32"))
    after, metrics = learned_from(exact_gradient, state, old_rollout)
    assert metrics["std_rho"] == metrics["rms_log_rho"] == metrics["discrepancy"] == 0
    assert_same_tree(after.past_params, jax.tree.map(lambda w: w[None], state.params))
    mask = old_rollout.mask
    for name, params in (("rms_log_rho_copied", state.params), ("rms_log_rho_at_rollout", past)):
        apart = scored(recipe, params, old_rollout).logp - old_rollout.logp_infer
        # A mean of at most 80 float32 squares, and a square root.
        np.testing.assert_allclose(metrics[name], rms(apart, mask), rtol=1e-5)
    assert metrics["rms_log_rho_copied"] > metrics["rms_log_rho_at_rollout"] > 0

    honest = token_batch(recipe, state.params, old_rollout)
    copied = replace(honest, logp_train=honest.logp_infer)
    gradient = jax.jit(policy_gradient, compiler_options=QUICK)
    expected, straight = (
        gradient(recipe, state.params, old_rollout, batch, rollout_terms(recipe.objective, batch))[0]
        for batch in (copied, honest)
    )
    moments = after.opt_state[1].mu
    for leaf, same, other in zip(*map(jax.tree.leaves, (moments, expected, straight)), strict=True):
        # Another program for the same sums, of at most ~100 terms.
        np.testing.assert_allclose(leaf, same, atol=100 * 2.0**-24 * np.abs(same).max())
        assert np.abs(leaf - other).max() > 1e-3 * np.abs(same).max()


def test_the_gradient_is_rounded_before_the_optimizer(asynchronous, old_rollout):
    recipe, state, _ = asynchronous
    exact = replace(recipe, gradient_site=Site.of("fp32"))
    rounded, whole = (learned_from(r, state, old_rollout)[0].opt_state[1].mu for r in (recipe, exact))
    assert differ(rounded, whole)
    assert_same_tree(rounded, jax.tree.map(lambda g: store(g, recipe.gradient_site), whole))


def test_every_leaf_and_minibatch_has_its_own_random_bits():
    halfway = jnp.full((64,), 1 + 2.0**-8)
    site, keys = Site.of("bf16", "stochastic"), jax.random.split(jax.random.key(0), 2)
    first, again = (round_gradient({"a": halfway, "b": halfway}, site, key) for key in keys)
    assert differ(first["a"], first["b"])
    assert differ(first["a"], again["a"])
    assert set(np.unique(first["a"])) == {1, 1 + 2.0**-7}


@pytest.fixture(scope="module")
def routed():
    """A mixture, its state, and a rollout whose engine routes some tokens otherwise than training does."""
    recipe = small_recipe(COARSE_ROUTER, "grpo", model=MOE, optimizer=AdamW(learning_rate=0.1))
    state = small_state(recipe)
    sampled = roll(recipe, state)
    chosen = scored(recipe, state.params, replace(sampled, routed_experts=None)).routed_experts
    assert bool(jnp.any(chosen != sampled.routed_experts))
    return recipe, state, sampled, chosen


def test_replaying_ones_own_experts_changes_no_bit(routed):
    recipe, state, sampled, chosen = routed
    free = scored(recipe, state.params, replace(sampled, routed_experts=None))
    own = scored(recipe, state.params, replace(sampled, routed_experts=chosen))
    theirs = scored(recipe, state.params, sampled)
    assert_exact(own.logp, free.logp)
    assert bool(jnp.any(theirs.logp != free.logp))
    # What is returned stays the engine's own choice; the first layer reads the same input either way.
    assert_exact(theirs.routed_experts[:, :, 0], chosen[:, :, 0])


@pytest.mark.parametrize("replay", REPLAYS)
def test_r3_replays_rollout_experts_and_r2_those_of_scoring(routed, replay):
    recipe, state, sampled, chosen = routed
    recipe = replace(recipe, engines=replace(recipe.engines, replay=replay))
    scores, replayed = jax.jit(score_rollout, compiler_options=QUICK)(recipe, state.params, sampled)
    used = sampled.routed_experts if replay == "R3" else None
    expected = scored(recipe, state.params, replace(sampled, routed_experts=used)).logp
    # Another program: float32 round-off of log-probabilities of order one.
    np.testing.assert_allclose(scores.logp, expected, atol=100 * 2.0**-24)
    kept = {"none": None, "R2": chosen, "R3": sampled.routed_experts}[replay]
    assert_same_tree(replayed.routed_experts, kept)


def test_replay_reaches_the_updates(routed):
    recipe, state, sampled, _ = routed
    after = {
        replay: learned_from(replace(recipe, engines=replace(recipe.engines, replay=replay)), state, sampled)[
            0
        ]
        for replay in ("none", "R2")
    }
    # R2 is free routing until the first update moves a choice.
    assert differ(after["none"].params, after["R2"].params)


@pytest.mark.slow
def test_copying_from_a_truly_identical_engine_is_the_same_run():
    compile_quickly(False)
    runs = []
    for source in ("train", "rollout"):
        recipe = small_recipe(
            "f32-exact/f32-exact", old_log_probs=source, optimizer=AdamW(learning_rate=0.01)
        )
        runs.append(train(recipe, small_state(recipe), 3, chunk=3)[0])
    assert_same_tree(*runs)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"minibatches": 3}, "minibatches must divide prompts_per_step, got 3 and 4"),
        (
            {"gradient_checkpointing": True},
            "gradient_checkpointing must be false .* fewer than 4 layers, got true",
        ),
        ({"staleness": -1}, "staleness must be at least 0, got -1"),
        ({"old_log_probs": "bypass"}, "old_log_probs must be train or rollout, got 'bypass'"),
        ({"objective": "ppo"}, r"critic must be given with the advantage gae, got none. Set critic = {}"),
        ({"critic": Critic()}, "critic must be none without the advantage gae, got a critic"),
    ],
)
def test_bad_recipes_are_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        small_recipe(**bad)


@pytest.mark.parametrize(
    "name",
    [
        "ipo+score_centering",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpg otb", "dppo_kl top-k")),
    ],
)
def test_objectives_over_the_vocabulary_get_their_columns(name):
    recipe = small_recipe(COARSE, minibatches=1)
    objective = {
        "ipo+score_centering": resolve("ipo+score_centering"),
        "gpg otb": resolve("gpg", advantage="otb"),
        "dppo_kl top-k": resolve("dppo_kl", divergence_top_k=4, divergence_low=1e-3),
    }[name]
    recipe = replace(recipe, objective=objective)
    state = small_state(recipe)

    @partial(jax.jit, compiler_options=QUICK)
    def both(params):
        trajectory = rollout(recipe, state)
        scores, replayed = score_rollout(recipe, params, trajectory)
        batch = token_batch_of(recipe, state, replayed, scores)
        found, _ = policy_gradient(recipe, params, replayed, batch, rollout_terms(objective, batch))

        def loss(params):
            now = score(recipe, params, replayed)
            columns = {"logp": now.logp, "logp_vocabulary": now.logp_vocabulary}
            return -objective_value(objective, replace(batch, **columns))

        return trajectory, batch, found, jax.grad(loss)(params)

    trajectory, batch, found, expected = both(state.params)
    assert trajectory.logp_infer_vocabulary.shape[:2] == trajectory.responses.shape
    at = np.take_along_axis(trajectory.logp_infer_vocabulary, trajectory.responses[..., None], axis=-1)[
        ..., 0
    ]
    assert_exact(np.where(trajectory.mask, at, 0), trajectory.logp_infer)
    squares = np.exp(2 * np.float64(batch.logp_vocabulary)).sum(-1)
    np.testing.assert_allclose(batch.sum_squared_probabilities, np.where(batch.mask, squares, 0), rtol=1e-5)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected)) > 1e-4
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_clip_cov_draws_in_every_minibatch(trajectory):
    """More candidates than draws: without a key the gradient would be NaN."""
    recipe = replace(
        small_recipe(COARSE), objective=resolve("clip_cov", advantage="reward", cov_low=-9.0, cov_high=9.0)
    )
    after, metrics = learned_from(recipe, small_state(recipe), trajectory)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.params))
    assert metrics["grad_norm"] > 0


def test_other_objectives_carry_no_column_of_the_vocabulary(trajectory):
    assert trajectory.logp_infer_vocabulary is None


@pytest.mark.slow
def test_gradient_checkpointing_gives_the_same_update(trajectory):
    # Responses of another policy are as good as its own.
    plain = small_recipe(COARSE, model=replace(DENSE, num_hidden_layers=SCANNED_LAYERS))
    state = small_state(plain)
    updated = [
        learned_from(replace(plain, gradient_checkpointing=on), state, trajectory)[0] for on in (False, True)
    ]
    # Not bit for bit: a scan may add gradients in another order.
    for one, other in zip(*(jax.tree.leaves(after.params) for after in updated), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    assert differ(updated[0].params, state.params)
