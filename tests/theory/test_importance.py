"""H3, E[rho] = 1, survival bias."""

import numpy as np
import pytest
from hypothesis import given

from simlab.theory import importance
from simlab.theory.expectation import PolicyPair, expect, softmax
from tests.theory.strategies import SPACES, laws, pairs


@given(laws())
def test_inverse_rho_is_one_plus_chi2_and_one_only_at_equality(pair):
    train, infer = pair
    left, right = importance.inverse_rho_mean(train, infer)
    assert left[0] == pytest.approx(right[0], rel=1e-9)
    assert left[0] >= 1 - 1e-12
    if np.abs(train - infer).max() > 1e-4:
        assert left[0] > 1


@given(laws())
def test_rho_mean_is_the_mass_that_can_be_sampled(pair):
    train, infer = pair
    left, right = importance.rho_mean(train, infer)
    assert left[0] == pytest.approx(right[0], rel=1e-9)
    if (infer > 0).all():
        assert left[0] == pytest.approx(1, rel=1e-9)
    elif train[infer == 0].sum() > 1e-9:
        assert left[0] < 1


def test_inverse_rho_is_infinite_where_train_misses_a_token():
    left, right = importance.inverse_rho_mean(np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]]))
    assert np.isinf(left[0])
    assert np.isinf(right[0])


@given(pairs())
def test_the_same_over_whole_sequences(pair):
    assert expect(pair.probs_infer, np.exp(pair.log_rho.sum(1))) == pytest.approx(1, rel=1e-9)
    assert expect(pair.probs_infer, np.exp(-pair.log_rho.sum(1))) >= 1 - 1e-12


def test_pairs_refuse_tables_that_are_no_laws():
    space = SPACES[2][0]
    good = softmax(np.zeros(space.table_shape))
    with pytest.raises(ValueError, match="must be float64"):
        PolicyPair(space, good.astype(np.float32), good)
    with pytest.raises(ValueError, match="rows of infer must sum to one"):
        PolicyPair(space, good, good * 1.1)


@given(pairs())
def test_bins_hold_all_tokens_and_the_mean_of_bins_is_one(pair):
    edges = np.array([0, 1e-3, 0.1, 0.5, 1.0 + 1e-9])
    for by in ("train", "infer"):
        rho, mass = importance.mean_rho_in_bins(pair.train, pair.infer, edges, by)
        assert mass.sum() == pytest.approx(1, rel=1e-9)
        assert np.nansum(rho * mass) == pytest.approx(1, rel=1e-9)


def test_bins_against_a_loop_over_tokens():
    rng = np.random.default_rng(0)
    train, infer = softmax(rng.normal(size=(3, 6))), softmax(rng.normal(size=(3, 6)))
    edges = np.array([0.0, 0.1, 0.2, 1.0])
    rho, _ = importance.mean_rho_in_bins(train, infer, edges, "train")
    for b in range(3):
        weight = total = 0.0
        for p, q in zip(train.ravel(), infer.ravel(), strict=True):
            if edges[b] <= p < edges[b + 1]:
                weight += q
                total += q * (p / q)
        assert rho[b] == pytest.approx(total / weight, rel=1e-12)


def test_survival_bias_per_token_by_train():
    # Mean over antithetic noise of infer / train against 1 + s^2 (c - p), for one row and many draws.
    # 2e5 antithetic draws: the standard error of the mean is below s^2 / 300 and s^4 terms are 1% of s^2.
    rng = np.random.default_rng(0)
    probs = softmax(1.5 * rng.normal(size=(1, 8)))
    noise = 0.1 * rng.normal(size=(200_000, 8))
    logs = np.log(probs)
    ratio = (softmax(logs + noise) + softmax(logs - noise)).mean(0) / 2 / probs[0]
    predicted = -importance.survival_bias(probs, 0.01, "train")[0]
    np.testing.assert_allclose(ratio - 1, predicted, atol=0.01 * 0.03)


def test_survival_bias_changes_sign_with_the_policy_that_sorts():
    probs = softmax(1.5 * np.random.default_rng(0).normal(size=(50, 64)))
    rare = probs < 1e-3
    assert (importance.survival_bias(probs, 0.04, "train")[rare] < 0).all()
    assert (importance.survival_bias(probs, 0.04, "infer", 1.5**2)[rare] > 0).all()
    # Without a spread of logits the noise says nothing about a token, and both directions are one.
    flat = importance.survival_bias(probs, 0.04, "infer")
    np.testing.assert_allclose(flat, -importance.survival_bias(probs, 0.04, "train"))


def test_unknown_sorting_is_refused():
    probs = softmax(np.zeros((1, 3)))
    with pytest.raises(ValueError, match="train or infer"):
        importance.mean_rho_in_bins(probs, probs, np.array([0.0, 1.0]), "both")
