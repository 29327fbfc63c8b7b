"""Injected weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import objective_value, prepare_batch
from simlab.objectives.distortions import GaussianNoise, LowProbabilityDelta
from tests.objectives.batches import batch_of, coefficients_of
from tests.tolerances import assert_within_interval, normal_interval


def test_delta_looks_at_pi_train_and_not_at_theta():
    logp_train = np.log([[0.05, 0.2], [0.5, 0.09]])
    batch = batch_of([[2.0, -2.0], [0, 0]], [1, 0], 2, logp_train=logp_train)
    np.testing.assert_array_equal(LowProbabilityDelta(3.0, 0.1)(prepare_batch(batch)), [[3, 1], [1, 3]])


@pytest.mark.parametrize("delta", [1.2, 0.0])
def test_delta_multiplies_coefficients(delta):
    logp_train = np.log([[0.05, 0.2], [0.5, 0.09]])
    batch = batch_of(np.zeros((2, 2)), [1, 0], 2, logp_train=logp_train)
    plain = np.asarray(coefficients_of("gspo", batch))
    distorted = np.asarray(coefficients_of("gspo_bias", batch, distortion_delta=delta))
    np.testing.assert_allclose(distorted, plain * [[delta, 1], [1, delta]], rtol=1e-6)


def test_noise_is_drawn_from_the_key_and_has_its_width():
    key = jax.random.key(7)
    batch = prepare_batch(batch_of(np.zeros((64, 100)), np.zeros(64), key=key))
    draws = np.asarray(GaussianNoise(0.2)(batch))
    np.testing.assert_array_equal(draws, GaussianNoise(0.2)(batch))
    low, high = normal_interval(draws.size, 1.0, 0.2, alpha=1e-9)
    assert_within_interval(draws.mean(), low, high, alpha=1e-9)
    # The squared deviations have mean 0.04 and standard deviation sqrt(2) 0.04.
    low, high = normal_interval(draws.size, 0.04, 0.04 * np.sqrt(2), alpha=1e-9)
    assert_within_interval(((draws - 1) ** 2).mean(), low, high, alpha=1e-9)


def test_noise_without_a_key_is_refused():
    with pytest.raises(ValueError, match=r"TokenBatch\.key"):
        objective_value("gspo_noise", batch_of(jnp.zeros((2, 2)), [1, 0], 2))
