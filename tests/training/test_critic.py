"""The critic: GAE against a loop, what a value may see, and that the critic learns its returns."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import Engine
from simlab.objectives import TokenBatch, prepare_batch
from simlab.training.critic import Critic, token_values
from simlab.training.optimizer import AdamW
from simlab.training.step import learn, rollout
from tests.tolerances import assert_exact
from tests.training.recipes import COARSE, DENSE, QUICK, differ, small_recipe, small_state

rng = np.random.default_rng(0)


def gae_by_loop(reward, values, length, gamma, lam):
    """Backwards over the tokens of one response, the reward at the last one, nothing after it."""
    advantages, following, advantage = np.zeros(len(values)), 0.0, 0.0
    for t in reversed(range(length)):
        error = (reward if t == length - 1 else 0.0) + gamma * following - values[t]
        advantage = error + gamma * lam * advantage
        advantages[t], following = advantage, values[t]
    return advantages


def test_gae_is_the_loop_and_its_numbers_are_data():
    values, lengths = rng.standard_normal((4, 7)).astype(np.float32), [7, 3, 1, 5]
    rewards = rng.standard_normal(4).astype(np.float32)
    mask = np.arange(7) < np.array(lengths)[:, None]
    zeros = jnp.zeros((4, 7))
    batch = prepare_batch(TokenBatch(zeros, zeros, zeros, rewards, mask, 2, values=jnp.asarray(values)))
    numbers = np.array([(1.0, 1.0), (0.9, 0.95), (0.5, 0.0)], np.float32)
    critics = jax.vmap(lambda n: Critic(gamma=n[0], lam=n[1]))(jnp.asarray(numbers))
    found = jax.jit(jax.vmap(lambda critic: critic.gae.compute_unwhitened(batch)))(critics)
    for advantages, (gamma, lam) in zip(found, numbers, strict=True):
        expected = [gae_by_loop(*row, gamma, lam) for row in zip(rewards, values, lengths, strict=True)]
        # Seven steps of three float32 operations on numbers of order one.
        np.testing.assert_allclose(advantages, expected, atol=40 * 2.0**-24)


@pytest.fixture(scope="module")
def recipe():
    # The policy stands still, so that what the critic has to learn does.
    return small_recipe(
        COARSE,
        "ppo",
        critic=Critic(optimizer=AdamW(learning_rate=0.01), gamma=0.9, lam=0.8, value_clip=0.2),
        optimizer=AdamW(learning_rate=0.0),
    )


@pytest.fixture(scope="module")
def state(recipe):
    return small_state(recipe)


@pytest.fixture(scope="module")
def trajectory(recipe, state):
    return jax.jit(rollout, compiler_options=QUICK)(recipe, state)


learned_from = jax.jit(learn, compiler_options=QUICK)


def test_the_critic_learns_the_returns_and_the_policy_stands(recipe, state, trajectory):
    losses, now = [], state
    for _ in range(30):
        now, metrics = learned_from(recipe, now, trajectory)
        losses.append(float(metrics["critic_loss"]))
    assert np.mean(losses[-3:]) < 0.3 * losses[0]
    assert not differ(now.params, state.params)
    assert differ(now.critic.params["body"], state.critic.params["body"])


def test_the_first_loss_is_that_of_values_of_zero(recipe, state, trajectory):
    """By hand: values 0, so returns are the discounted reward, lambda and all; the mean over the tokens."""
    slow = replace(recipe, critic=replace(recipe.critic, optimizer=AdamW(learning_rate=0.0)))
    _, metrics = learned_from(slow, state, trajectory)
    mask = np.asarray(trajectory.mask)
    rewards, lengths = np.asarray(trajectory.rewards), mask.sum(1)
    zeros = np.zeros(mask.shape[1])
    errors = np.array(
        [gae_by_loop(r, zeros, n, 0.9, 0.8) ** 2 for r, n in zip(rewards, lengths, strict=True)]
    )
    halves = [0.5 * e[m].mean() for e, m in zip(np.split(errors, 2), np.split(mask, 2), strict=True)]
    # Means over at most 40 tokens, in another order.
    np.testing.assert_allclose(metrics["critic_loss"], np.mean(halves), rtol=1e-5)


def test_the_discount_reaches_the_advantages(recipe, state, trajectory):
    other = replace(recipe, critic=replace(recipe.critic, gamma=0.5))
    norms = [learned_from(r, state, trajectory)[1]["grad_norm"] for r in (recipe, other)]
    assert norms[0] != norms[1]


def test_a_value_sees_the_context_and_not_the_token_it_is_about(state, trajectory):
    params = {**state.critic.params, "head": jnp.ones_like(state.critic.params["head"])}
    seen = jax.jit(lambda t: token_values(params, DENSE, Engine(), t), compiler_options=QUICK)
    values = seen(trajectory)
    assert values.shape == trajectory.responses.shape
    at = 2
    changed = replace(trajectory, responses=trajectory.responses.at[:, at].add(1) % 32)
    after = seen(changed)
    assert_exact(after[:, : at + 1], values[:, : at + 1])
    assert bool(jnp.all(after[:, at + 1] != values[:, at + 1]))
    prompted = seen(replace(trajectory, prompts=(trajectory.prompts + 1) % 32))
    assert bool(jnp.all(prompted[:, 0] != values[:, 0]))
