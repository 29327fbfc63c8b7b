"""L8, L9, L10: bounds are kept, and their ingredients are what they say."""

import numpy as np
import pytest
from hypothesis import given

from simlab.models.tabular import enumerate_sequences, log_softmax, token_values
from simlab.theory import bounds
from simlab.theory.engine_pairs import engine_rows, pair_rows
from simlab.theory.expectation import PolicyPair, noisy_pair, random_logits, random_rewards, softmax
from tests.theory.strategies import pairs


@given(pairs())
def test_gradient_error_stays_below_both_bounds(pair):
    for rewards in (random_rewards(pair.space, 0), bounds.worst_rewards(pair)):
        quadratic, linear = bounds.gradient_error(pair, rewards), bounds.gradient_error_linear(pair, rewards)
        assert quadratic.value == linear.value
        assert quadratic.value <= quadratic.bound * (1 + 1e-9) + 1e-12
        assert linear.value <= linear.bound * (1 + 1e-9) + 1e-12


@given(pairs())
def test_worst_rewards_are_worse_than_random_ones(pair):
    worst = bounds.gradient_error(pair, bounds.worst_rewards(pair)).value
    for seed in range(3):
        assert worst >= bounds.gradient_error(pair, random_rewards(pair.space, seed)).value - 1e-12


def test_worst_rewards_against_all_reward_tables():
    space = enumerate_sequences(2, 3)
    pair = noisy_pair(space, random_logits(space, 0), 0.5)
    found = bounds.gradient_error(pair, bounds.worst_rewards(pair)).value
    best = max(
        bounds.gradient_error(pair, np.array([(code >> s) & 1 for s in range(8)], float)).value
        for code in range(256)
    )
    assert found == pytest.approx(best, rel=1e-12)


def test_linear_bound_is_reached_when_tokens_share_one_context():
    space = enumerate_sequences(2, 10, memory=0)
    pair = noisy_pair(space, random_logits(space, 0), 0.01)
    linear = bounds.gradient_error_linear(pair, bounds.worst_rewards(pair))
    assert 0.95 < linear.tightness <= 1


@given(pairs())
def test_occupancy_drift_stays_below_and_starts_at_zero(pair):
    drifts = bounds.occupancy_drift(pair)
    assert drifts[0].value < 1e-12
    for bound in drifts:
        assert bound.value <= bound.bound * (1 + 1e-9) + 1e-12


def test_occupancy_drift_is_row_distance_at_one_token():
    space = enumerate_sequences(3, 3)
    pair = noisy_pair(space, random_logits(space, 0), 0.5)
    assert bounds.occupancy_drift(pair)[1].value == pytest.approx(np.abs(pair.train[0] - pair.infer[0]).sum())


def test_score_bound_is_the_largest_norm():
    probs = softmax(np.random.default_rng(0).normal(size=(4, 5)))
    norms = [np.linalg.norm(np.eye(5)[a] - probs[k]) for k in range(4) for a in range(5)]
    assert bounds.score_bound(probs) == pytest.approx(max(norms), rel=1e-12)


def test_gradient_of_the_proof_is_the_derivative_of_the_engine():
    # With slopes the engine's value is E_infer[R] at logits f(z); its gradient by central differences.
    space = enumerate_sequences(3, 2)
    logits, rewards = random_logits(space, 0), random_rewards(space, 0)

    def engine(z):
        return z + 0.05 * np.sin(3 * z)

    slopes = 1 + 0.15 * np.cos(3 * logits)
    pair = PolicyPair(space, softmax(logits), softmax(engine(logits)))

    def value(z):
        return np.exp(token_values(space, log_softmax(engine(z))).sum(1)) @ rewards

    numeric = np.zeros_like(logits)
    for index in np.ndindex(*logits.shape):
        step = np.zeros_like(logits)
        step[index] = 1e-5
        numeric[index] = (value(logits + step) - value(logits - step)) / 2e-5
    expected = np.linalg.norm(numeric - pair.gradient(pair.probs_train * rewards))
    assert bounds.gradient_error_of_proof(pair, rewards, slopes).value == pytest.approx(expected, rel=1e-6)


def test_proof_bound_holds_without_and_fails_with_slopes():
    space = enumerate_sequences(3, 2)
    logits, rewards = random_logits(space, 0), random_rewards(space, 0)
    pair = PolicyPair(space, softmax(logits), softmax(logits + 1e-3 * np.sin(1e4 * logits)))
    slopes = 1 + 10 * np.cos(1e4 * logits)
    assert bounds.gradient_error_of_proof(pair, rewards, np.ones_like(slopes)).tightness < 1
    assert bounds.gradient_error_of_proof(pair, rewards, slopes).tightness > 10


@given(pairs())
def test_progress_is_above_its_bound(pair):
    if len(pair.space.tokens) > 9:
        return
    logits = np.log(pair.train)
    for eta in (1e-3, 0.1, 1.0):
        step = bounds.average_progress(pair, logits, random_rewards(pair.space, 0), eta)
        assert step.change >= step.lower_bound - 1e-12


def test_noise_penalty_is_quadratic_and_progress_linear():
    space = enumerate_sequences(3, 2)
    logits, rewards = random_logits(space, 0), random_rewards(space, 0)
    small, large = (
        bounds.average_progress(noisy_pair(space, logits, 0.3), logits, rewards, eta) for eta in (1e-5, 1e-4)
    )
    assert large.noise_penalty / small.noise_penalty == pytest.approx(100, rel=1e-9)
    assert large.true_progress / small.true_progress == pytest.approx(10, rel=1e-2)
    # The real change is the same order: its mean is true progress plus bias.
    assert small.change == pytest.approx(small.true_progress + small.bias_effect, rel=1e-2)


def test_log_slope_of_a_power_law():
    horizons = np.array([1.0, 2.0, 5.0])
    assert bounds.log_slope(horizons, 3 * horizons**1.7) == pytest.approx(1.7)
    # Two engines may agree on the first tokens.
    assert bounds.log_slope(horizons, np.array([0.0, 4.0, 25.0])) == pytest.approx(2)


def test_engine_rows_are_the_table_up_to_the_engine():
    logits = random_logits(enumerate_sequences(4, 2), 0)
    exact = softmax(logits)
    # 128 products of numbers below 6 in float32, twice: relative error below 1e-5.
    np.testing.assert_allclose(engine_rows(logits, "f32"), exact, rtol=1e-5)
    error = np.abs(engine_rows(logits, "fp8-e4m3-truncated") / exact - 1).max()
    assert 0.01 < error < 0.5
    with pytest.raises(ValueError, match="at most 128 tokens"):
        engine_rows(np.zeros((1, 129)), "f32")


def test_engine_pair_of_one_engine_has_no_mismatch():
    space = enumerate_sequences(4, 2)
    logits = random_logits(space, 0)
    assert PolicyPair(space, *pair_rows(logits, "f32/f32")).rho_std == 0
    assert PolicyPair(space, *pair_rows(logits, "f32/fp8-e4m3-truncated")).rho_std > 0.01
