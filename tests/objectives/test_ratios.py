"""What each clip does to one token, by sign of the advantage and side of the range."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import TokenBatch, objective_value
from simlab.objectives.ratios import SignAwareClip
from tests.objectives.batches import LOGP_TRAIN, batch_of, coefficients_of, value_of

# A logarithm and an exponential in float32, whose arguments are of order one: a few times 2^-24.
CLOSE = {"rtol": 1e-6, "atol": 1e-7}


# (ratio, advantage, value, coefficient)
ONE_TOKEN = {
    # Two-sided 0.2: clipped only where the ratio has moved in the direction of the advantage.
    "grpo": [
        (1.5, 2.0, 2.4, 0),
        (1.1, 2.0, 2.2, 2.2),
        (0.5, 2.0, 1.0, 1.0),
        (0.5, -2.0, -1.6, 0),
        (0.9, -2.0, -1.8, -1.8),
        (5.0, -2.0, -10, -10),
    ],
    # Dual clip 3.
    "ppo": [
        (5.0, -2.0, -6, 0),
        (5.0, 2.0, 2.4, 0),
        (2.5, -2.0, -5, -5),
    ],
    # Decoupled: 1.25 lies inside 0.28, outside 0.2.
    "rloo": [
        (1.25, 2.0, 2.5, 2.5),
        (1.3, 2.0, 2.56, 0),
        (0.75, -2.0, -1.6, 0),
    ],
    "dr_grpo": [
        (1.25, 2.0, 2.4, 0),
    ],
    # Sign-free: the sign of the advantage decides nothing; no bound below.
    "grpo_fix": [
        (1.5, 2.0, 2.4, 0),
        (1.5, -2.0, -2.4, 0),
        (0.5, -2.0, -1.0, -1.0),
        (1.1, -2.0, -2.2, -2.2),
    ],
    # The other reading: same values, the clipped weight stays on the score.
    "grpo_fix_weight": [
        (1.5, 2.0, 2.4, 2.4),
        (1.5, -2.0, -2.4, -2.4),
        (0.5, 2.0, 1.0, 1.0),
    ],
    # One token: the sequence ratio is its ratio, clipped at 3e-4 / 4e-4.
    "gspo": [
        (1.1, 2.0, 2.0008, 0),
        (1.1, -2.0, -2.2, -2.2),
        (1.0002, 2.0, 2.0004, 2.0004),
    ],
    "gmpo": [
        (1.4, 2.0, 2.8, 2.8),
        (1.6, 2.0, 2 * np.exp(0.4), 0),
        (0.5, -2.0, -2 * np.exp(-0.4), 0),
        (1.6, -2.0, -3.2, -3.2),
    ],
    # Weight times log pi, the weight clipped on both sides whatever the sign.
    "cispo": [
        (1.5, 2.0, 2.4 * (LOGP_TRAIN + np.log(1.5)), 2.4),
        (0.5, 2.0, 1.6 * (LOGP_TRAIN + np.log(0.5)), 1.6),
        (0.5, -2.0, -1.6 * (LOGP_TRAIN + np.log(0.5)), -1.6),
    ],
    # (4 / tau) sigmoid(tau (r - 1)); its derivative in log r is 4 s (1 - s) r.
    "sapo": [
        (1.0, 2.0, 4.0, 2.0),
        (1.0, -2.0, -2 * 2 / 1.05, -2.0),
        (3.0, 2.0, 8 / (1 + np.exp(-2)), 8 * 3 * np.exp(-2) / (1 + np.exp(-2)) ** 2),
    ],
    "reinforce": [
        (1.5, 2.0, 2 * (LOGP_TRAIN + np.log(1.5)), 2.0),
    ],
}


def one_token(name, ratios, advantages, **overrides):
    """Values and coefficients of single tokens: the advantage is the reward, and every mean is over one."""
    overrides |= {"advantage": "reward"}

    def evaluate(log_ratio, advantage):
        def value(logp):
            train = jnp.full((1, 1), LOGP_TRAIN)
            batch = TokenBatch(logp, train, train, advantage[None], jnp.ones((1, 1), bool), 1)
            return objective_value(name, batch, **overrides)

        found, coefficient = jax.value_and_grad(value)(LOGP_TRAIN + log_ratio.reshape(1, 1))
        return found, coefficient[0, 0]

    return jax.jit(jax.vmap(evaluate))(jnp.log(jnp.float32(ratios)), jnp.float32(advantages))


@pytest.mark.parametrize("name", ONE_TOKEN)
def test_one_token(name):
    ratios, advantages, values, coefficients = np.transpose(ONE_TOKEN[name])
    actual = one_token(name, ratios, advantages)
    np.testing.assert_allclose(actual[0], values, **CLOSE)
    np.testing.assert_allclose(actual[1], coefficients, **CLOSE)


def test_a_ratio_on_the_bound_keeps_its_gradient():
    on_bound = SignAwareClip(0.5, 0.5)(jnp.full((1, 1), 1.5), jnp.ones((1, 1)))
    assert on_bound.item() == 1.5
    unclipped = one_token("grpo", [1.0, 1.0], [1.0, -1.0], clip_low=0.0, clip_high=0.0)
    np.testing.assert_array_equal(unclipped, [[1, -1], [1, -1]])


def test_dual_clip_at_infinity_is_none():
    off = one_token("ppo", [50.0], [-1.0], dual_clip=np.inf)
    np.testing.assert_array_equal(one_token("grpo", [50.0], [-1.0]), off)


def test_dual_clip_is_for_negative_advantages():
    values, _ = one_token("ppo", [5.0, 5.0], [1.0, -1.0], clip_high=9.0)
    np.testing.assert_allclose(values, [5, -3], **CLOSE)


def test_log_ratios_stop_at_twenty():
    for log_ratio, value in ((100.0, np.exp(20.0)), (-100.0, np.exp(-20.0))):
        batch = batch_of([[log_ratio]], [-1.0])
        overrides = {"advantage": "reward", "clip_low": 1.0}
        np.testing.assert_allclose(value_of("grpo", batch, **overrides), -value, rtol=1e-6)
        assert coefficients_of("grpo", batch, **overrides)[0, 0] == 0


@pytest.mark.parametrize(("ratio", "value", "gradient"), [(1.5, 1.2 - 1.5, -1.5), (0.5, 0.5 - 0.8, 0.5)])
def test_sign_aware_clip_breaks_cancellation_of_a_shared_token(ratio, value, gradient):
    """cancel Eq. 75, 76 for A = 1, and the gradient, in which the clipped side is zero."""
    batch = batch_of([[np.log(ratio)], [np.log(ratio)]], [-1.0, 1.0], 2)
    overrides = {"advantage": "reward", "aggregation": "token-sum"}
    np.testing.assert_allclose(value_of("grpo", batch, **overrides), value, **CLOSE)
    np.testing.assert_allclose(coefficients_of("grpo", batch, **overrides).sum(), gradient, **CLOSE)
    for fixed in ("grpo_fix", "grpo_fix_weight"):
        assert coefficients_of(fixed, batch, **overrides).sum() == 0


def test_geometric_ratio_is_the_length_normalized_one():
    """cancel Eq. 44, 66: s = exp(mean log r), coefficient A s / (B |y|)."""
    log_r = np.array([[0.2, -0.1, 0.5], [0.3, 0.1, 7.0]])
    batch = batch_of(log_r, [1.0, -1.0], mask=[[1, 1, 1], [1, 1, 0]])
    overrides = {"advantage": "reward", "clip_low": 9.0, "clip_high": 9.0}
    s = np.exp([0.2, 0.2])
    np.testing.assert_allclose(value_of("gspo", batch, **overrides), (s[0] - s[1]) / 2, atol=1e-7)
    expected = [[s[0] / 6] * 3, [-s[1] / 4, -s[1] / 4, 0]]
    np.testing.assert_allclose(coefficients_of("gspo", batch, **overrides), expected, **CLOSE)


def test_gmpo_clips_tokens_before_the_mean():
    log_r = np.array([[0.9, -0.9, 0.1]])
    positive = value_of("gmpo", batch_of(log_r, [1.0]), advantage="reward")
    negative = value_of("gmpo", batch_of(log_r, [-1.0]), advantage="reward")
    np.testing.assert_allclose(positive, np.exp((0.4 - 0.9 + 0.1) / 3), **CLOSE)
    np.testing.assert_allclose(negative, -np.exp((0.9 - 0.4 + 0.1) / 3), **CLOSE)
    coefficients = coefficients_of("gmpo", batch_of(log_r, [1.0]), advantage="reward")
    s = np.exp(-0.4 / 3)
    np.testing.assert_allclose(coefficients, [[0, s / 3, s / 3]], **CLOSE)


def test_gmpo_pools_correction_weights_geometrically():
    batch = batch_of([[0.0, 0.0]], [1.0], log_rho=[[np.log(1.5), np.log(0.5)]])
    value = value_of("gmpo+tis", batch, advantage="reward")
    np.testing.assert_allclose(value, np.sqrt(0.75), **CLOSE)
