"""C5, C6, C15, and the toy of Appendix A."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.models.tabular import enumerate_sequences
from simlab.theory import drift
from simlab.theory.bounds import log_slope
from simlab.theory.expectation import softmax
from simlab.theory.groups import ADVANTAGES

ETAS = np.geomspace(1e-3, 1e-1, 6)


@given(st.integers(0, 1000))
def test_kl_has_the_leading_term_and_a_third_order_remainder(seed):
    rng = np.random.default_rng(seed)
    logits, direction = rng.normal(size=6), rng.normal(size=6)
    pairs = np.array([drift.kl_after_step(logits, direction, eta) for eta in ETAS])
    assert (pairs[:, 0] > 0).all()
    ratio = pairs[:, 0] / pairs[:, 1] - 1
    # Third order: the relative remainder is at most linear in eta.
    assert abs(ratio[0]) < 0.05 * 10 * ETAS[0] / ETAS[-1] + 10 * ETAS[0]


def test_kl_against_its_definition():
    logits, direction = np.array([0.3, -1.0, 0.5]), np.array([1.0, 0.2, -0.4])
    before, after = softmax(logits[None])[0], softmax((logits + 0.5 * direction)[None])[0]
    exact, _ = drift.kl_after_step(logits, direction, 0.5)
    assert exact == pytest.approx((after * np.log(after / before)).sum(), rel=1e-12)


def test_order_of_a_power():
    assert log_slope(ETAS, -2 * ETAS**3) == pytest.approx(3)


@pytest.mark.parametrize("kappa", [(1.0, 0.7), (1.0, 1.0), (0.2, 1.5)])
def test_log_odds_follow_their_own_constants(kappa):
    space = drift.toy_space()
    logits = np.random.default_rng(0).normal(size=space.table_shape)
    rows = [drift.log_odds_drift(space, logits, (1, 2), np.array(kappa), eta) for eta in ETAS]
    remainder = np.array([row.exact - row.own_constants for row in rows])
    assert log_slope(ETAS, remainder) == pytest.approx(2, abs=0.1)
    assert rows[0].own_constants == pytest.approx(rows[0].exact, rel=0.02)


def test_two_answers_settle_at_ratio_of_coefficients():
    # Answers of one token: d log-odds = kappa_a - kappa_b - (kappa_a + kappa_b)(p_a - p_b) vanishes there.
    space = enumerate_sequences(4, 1)
    path = drift.pair_entropy_path(
        space, np.array([[2.0, -1.0, 0, 0]]), (0, 1), np.array([1.0, 0.4]), 0.1, 4000
    )
    share = 1 / 1.4
    limit = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    assert path[-1] == pytest.approx(limit, abs=1e-3)
    assert abs(path[0] - limit) > 0.1


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("seed", range(5))
def test_template_drift_is_the_covariance(name, seed):
    found = drift.template_drift(seed, 0.3, ADVANTAGES[name], 4)
    assert abs(found.token) < 1e-14
    assert found.sequence == pytest.approx(found.covariance, abs=1e-14)
    assert abs(found.sequence) > 1e-4
    still = drift.template_drift(seed, 0.0, ADVANTAGES[name], 4)
    assert abs(still.sequence) < 1e-14


def test_toy_numbers():
    found = drift.three_trajectories()
    np.testing.assert_allclose(found["advantages"], [-2 / 3, 1 / 3, 1 / 3], rtol=1e-15)
    assert found["pair_leftover"] == pytest.approx(found["pair_predicted"], abs=1e-14)
    assert found["group_leftover_equal_weights"] == pytest.approx(-1 / 3)
    assert abs(found["pair_leftover"]) > 0.01
    assert found["odds_drift"] != 0
    still = drift.three_trajectories(step=0.0)
    np.testing.assert_allclose(still["weights"], 1)
    assert abs(still["pair_leftover"]) < 1e-14


def test_toy_sequences_share_their_template():
    space = drift.toy_space()
    assert (space.contexts[0, :4] == space.contexts[1, :4]).all()
    assert space.contexts[2, 1] not in space.contexts[0]
    assert space.lengths.tolist() == [5, 5, 6]
