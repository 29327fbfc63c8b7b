"""H5, H6, H19: forms of the objective's change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from simlab.models.tabular import enumerate_sequences
from simlab.theory import hacking
from simlab.theory.expectation import noisy_pair, random_logits, relative
from tests.theory.strategies import pairs


def standard_pair(length, noise_std, vocabulary=3):
    space = enumerate_sequences(vocabulary, length)
    return noisy_pair(space, random_logits(space, 0), noise_std)


@given(pairs())
def test_cross_terms_are_what_the_printed_form_lacks(pair):
    x = np.random.default_rng(0).normal(size=pair.space.tokens.shape)
    gap = hacking.objective_gap(pair, x)
    size = 1 + abs(gap.double_sum)
    assert abs(gap.printed + gap.cross - gap.double_sum) < 1e-9 * size
    if pair.space.tokens.shape[1] == 1:
        assert abs(gap.printed - gap.exact) < 1e-9 * size


@given(pairs())
def test_exact_gap_is_the_difference_of_two_expectations(pair):
    x = np.random.default_rng(0).normal(size=pair.space.tokens.shape) * pair.space.mask
    expected = float(pair.probs_infer @ x.sum(1) - pair.probs_train @ x.sum(1))
    assert hacking.objective_gap(pair, x).exact == pytest.approx(expected, abs=1e-10)
    gradient = pair.gradient(pair.probs_infer[:, None] * x) - pair.gradient(pair.probs_train[:, None] * x)
    np.testing.assert_allclose(hacking.objective_gap_gradient(pair, x).exact, gradient, rtol=0, atol=1e-10)


@given(pairs())
def test_mean_of_inverse_rho_given_a_prefix_is_one(pair):
    np.testing.assert_allclose(hacking.mean_inverse_rho_given_prefix(pair), 1, rtol=1e-9)


@pytest.mark.parametrize("length", [2, 3, 5])
def test_printed_form_is_one_over_length_of_double_sum(length):
    pair = standard_pair(length, 0.002)
    values = np.random.default_rng(1).normal(size=(len(pair.space.tokens), 1))
    gap = hacking.objective_gap(pair, np.repeat(values / length, length, 1))
    assert gap.printed / gap.double_sum == pytest.approx(1 / length, rel=1e-10)
    assert gap.double_sum / gap.exact == pytest.approx(1, abs=0.02)
    assert abs(gap.printed / gap.exact - 1) > 0.45


def test_terms_of_the_future_vanish_when_x_knows_only_the_past():
    # X_t a function of the tokens up to t: the terms s > t drop out, the terms s < t do not.
    pair = standard_pair(3, 0.01)
    first = np.random.default_rng(0).normal(size=3)[pair.space.tokens[:, :1]]
    x = np.concatenate([first, np.zeros((len(first), 2))], axis=1)
    gap = hacking.objective_gap(pair, x)
    assert gap.printed == pytest.approx(gap.exact, rel=1e-10)


@given(pairs())
def test_noise_has_no_bias_and_the_variance_predicted(pair):
    x = np.random.default_rng(0).normal(size=pair.space.tokens.shape) * pair.space.mask
    effect = hacking.weight_noise(pair, x, 0.2)
    assert abs(effect.bias) < 1e-12
    assert effect.added_variance == pytest.approx(effect.predicted_variance, abs=1e-10)


@given(pairs())
def test_reweighting_gap_has_two_equal_sides(pair):
    rng = np.random.default_rng(0)
    x = rng.normal(size=pair.space.tokens.shape)
    left, right = hacking.reweighting_gap(pair, x, rng.random(x.shape))
    assert left == pytest.approx(right, abs=1e-12)


def test_phi_of_the_loss_is_the_gradient_of_the_clipped_loss():
    rng = np.random.default_rng(0)
    ratio, advantages = np.exp(0.5 * rng.normal(size=(50, 4))), rng.normal(size=(50, 1))
    by_ratio, by_loss = hacking.clip_weights(ratio, advantages, 0.2, 0.28)
    with jax.enable_x64():
        r, a = jnp.asarray(ratio), jnp.broadcast_to(jnp.asarray(advantages), ratio.shape)

        def loss(r):
            return jnp.minimum(r * a, jnp.clip(r, 0.8, 1.28) * a).sum()

        gradient = np.asarray(jax.grad(loss)(r))
    np.testing.assert_allclose(gradient, by_loss * advantages, rtol=0, atol=1e-14)
    assert (by_ratio <= by_loss).all()
    assert (by_ratio < by_loss).any()


def test_gradient_of_the_double_sum_converges():
    errors = []
    for noise_std in (0.02, 0.01, 0.005):
        pair = standard_pair(4, noise_std)
        c = np.random.default_rng(1).normal(size=pair.space.tokens.shape)
        gap = hacking.objective_gap_gradient(pair, c)
        errors.append(relative(gap.exact - gap.double_sum, gap.exact))
    assert errors[0] > 1.8 * errors[1] > 1.8**2 * errors[2]
