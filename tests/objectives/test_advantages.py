"""Advantages against numbers worked out by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import ADVANTAGES, prepare_batch
from simlab.objectives.advantages import Gae, gae, group_filter
from tests.objectives.batches import batch_of

# Rewards [1, 0, 0, 1]: mean 1/2, unbiased std sqrt(1/3); n / (n - 1) = 4/3.
BY_HAND = {
    "reward": [1, 0, 0, 1],
    "grpo": np.array([1, -1, -1, 1]) * 0.5 / (np.sqrt(1 / 3) + 1e-6),
    "grpo_no_std": [0.5, -0.5, -0.5, 0.5],
    "rloo": np.array([1, -1, -1, 1]) * 2 / 3,
    "whitened": np.array([1, -1, -1, 1]) * 0.5 / np.sqrt(0.25 * 12 / 11 + 1e-8),
}


def advantages(name, rewards, group_size, survivors=None, mask=None, tokens=3):
    batch = prepare_batch(batch_of(np.zeros((len(rewards), tokens)), rewards, group_size, mask=mask))
    kept = np.ones(len(rewards)) if survivors is None else survivors
    return np.asarray(ADVANTAGES[name](batch, jnp.asarray(kept, bool)))


@pytest.mark.parametrize("name", BY_HAND)
def test_one_group_of_four(name):
    # rtol: a mean, a variance, a root and a quotient in float32, some ten roundings of 6e-8.
    np.testing.assert_allclose(advantages(name, [1, 0, 0, 1], 4), BY_HAND[name], rtol=1e-6)


def test_groups_are_separate():
    both = advantages("grpo_no_std", [1, 0, 5, 3], 2)
    np.testing.assert_array_equal(both, [0.5, -0.5, 1, -1])


@pytest.mark.parametrize("name", ["grpo", "grpo_no_std", "rloo"])
def test_only_survivors_are_compared(name):
    among_two = advantages(name, [1, 0, 0, 1], 4, survivors=[1, 1, 0, 0])
    alone = advantages(name, [1, 0], 2)
    np.testing.assert_allclose(among_two, [*alone, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("name", ["grpo", "grpo_no_std", "rloo", "whitened"])
@pytest.mark.parametrize(
    ("rewards", "survivors"), [([0.9] * 3, [1, 1, 1]), ([1, 0, 0], [1, 0, 0]), ([1, 0, 0], [0] * 3)]
)
def test_nothing_to_compare_is_exactly_zero(name, rewards, survivors):
    """In float32 the mean of three 0.9 is not 0.9."""
    np.testing.assert_array_equal(advantages(name, rewards, 3, survivors), 0)


def test_whitening_counts_tokens_and_not_sequences():
    # Lengths 3 and 1: mean 3/4, variance (3 (1/4)^2 + (3/4)^2) / 3 = 1/4.
    whitened = advantages("whitened", [1, 0], 2, mask=[[1, 1, 1], [1, 0, 0]])
    np.testing.assert_allclose(whitened, [0.5, -1.5], rtol=1e-6)


def test_gae_by_hand():
    """gamma 0.5, lambda 0.5, values 1, 2, 4 and reward 10 at the last of three tokens; padding after it."""
    batch = prepare_batch(
        batch_of(np.zeros((1, 4)), [10], mask=[[1, 1, 1, 0]], values=jnp.asarray([[1.0, 2, 4, 99]]))
    )
    # Errors: 10 - 4 = 6; 0 + 0.5 * 4 - 2 = 0; 0 + 0.5 * 2 - 1 = 0. Advantages: 6, 0 + 0.25 * 6, 0 + 0.25 *
    # 1.5.
    np.testing.assert_array_equal(Gae(0.5, 0.5).compute_unwhitened(batch), [[0.375, 1.5, 6, 0]])


def test_gae_steps_over_gaps_in_the_mask():
    values = jnp.asarray([[1.0, 99, 4]])
    batch = prepare_batch(batch_of(np.zeros((1, 3)), [10], mask=[[1, 0, 1]], values=values))
    # As without the gap: errors 6 and 0.5 * 4 - 1 = 1; advantages 6 and 1 + 0.25 * 6.
    np.testing.assert_array_equal(Gae(0.5, 0.5).compute_unwhitened(batch), [[2.5, 0, 6]])


def test_gae_is_whitened_advantage_when_gamma_and_lam_are_one():
    values = np.array([[0.0, 1, 2], [3, 4, 50]], np.float32)
    batch = prepare_batch(
        batch_of(np.zeros((2, 3)), [1, 2], mask=[[1, 1, 1], [1, 1, 0]], values=jnp.asarray(values))
    )
    np.testing.assert_array_equal(gae.compute_unwhitened(batch), [[1, 0, -1], [-1, -2, 0]])
    x = np.array([1, 0, -1, -1, -2])
    expected = (x - x.mean()) / np.sqrt(x.var(ddof=1) + 1e-8)
    actual = np.asarray(gae(batch, jnp.ones(2, bool)))
    np.testing.assert_allclose(actual[np.asarray(batch.mask)], expected, rtol=1e-6, atol=1e-7)
    assert actual[1, 2] == 0


def test_group_filter_drops_groups_of_equal_rewards():
    batch = prepare_batch(batch_of(np.zeros((6, 1)), [1, 1, 0, 1, 0, 0], 2))
    np.testing.assert_array_equal(group_filter(batch), [0, 0, 1, 1, 0, 0])
