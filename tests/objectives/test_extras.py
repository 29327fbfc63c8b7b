"""Entropy, KL and critic terms by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import critic_penalty, entropy_bonus, kl_penalty
from simlab.objectives.batch import replace
from tests.objectives.batches import batch_of

MASK = [[1, 1, 0]]


def test_entropy_is_a_mean_over_tokens():
    assert entropy_bonus(jnp.float32([[1, 2, 99]]), jnp.float32(MASK)) == 1.5


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        # x = log policy / reference = 0.5 and -1; each slope is d/dx, over two tokens.
        ("k1", -0.25, [1, 1]),
        ("abs", 0.75, [1, -1]),
        ("k2", (0.125 + 0.5) / 2, [0.5, -1]),
        ("k3", (np.exp(-0.5) - 1 + 0.5 + np.exp(1) - 1 - 1) / 2, [1 - np.exp(-0.5), 1 - np.exp(1)]),
    ],
)
def test_kl(estimator, value, slope):
    batch = batch_of([[0.0, 0, 0]], [0], mask=MASK, logp_reference=jnp.float32([[-1.5, 0, jnp.nan]]))

    def penalty(logp):
        return kl_penalty(replace(batch, logp=logp), estimator)

    np.testing.assert_allclose(penalty(batch.logp), -value, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(penalty)(batch.logp), [[*(-np.array(slope) / 2), 0]], rtol=1e-6)


@pytest.mark.parametrize("estimator", ["abs", "k2", "k3"])
def test_kl_has_no_gradient_where_the_policies_agree(estimator):
    batch = batch_of([[0.0, 0, 0]], [0], mask=MASK, logp_reference=jnp.float32([[-1, -1, -1]]))
    gradient = jax.grad(lambda logp: kl_penalty(replace(batch, logp=logp), estimator))(batch.logp)
    np.testing.assert_array_equal(gradient, 0)


def test_kl_needs_a_reference_and_a_known_estimator():
    with pytest.raises(ValueError, match="logp_reference"):
        kl_penalty(batch_of([[0.0]], [0]))
    with pytest.raises(ValueError, match="KL estimator 'k4'"):
        kl_penalty(batch_of([[0.0]], [0]), "k4")


def test_critic():
    # gamma = lambda = 1: the returns are the reward, 2. Old values 1 and 1.8; clip 0.5.
    batch = batch_of([[0.0, 0, 0]], [2], mask=MASK, values=jnp.float32([[1, 1.8, jnp.nan]]))
    # New values 1.9 (clipped to 1.5: error 0.5) and 2.0 (error 0).
    value, slope = jax.value_and_grad(critic_penalty)(jnp.float32([[1.9, 2.0, jnp.nan]]), batch)
    np.testing.assert_allclose(value, -0.5 * 0.25 / 2, rtol=1e-5)
    np.testing.assert_array_equal(np.abs(slope[0, 0]), 0)
    # 3 is worse unclipped (error 1) than clipped (0.5): the worse one counts.
    value = critic_penalty(jnp.float32([[3, 2.0, jnp.nan]]), batch)
    np.testing.assert_allclose(value, -0.5 * 1 / 2, rtol=1e-5)
    # Inside the clip the slope is return - value, over two tokens.
    slope = jax.grad(critic_penalty)(jnp.float32([[1.25, 2.0, 0]]), batch)
    np.testing.assert_allclose(slope, [[0.375, 0, 0]], atol=1e-6)
