"""A11, A15."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from simlab.objectives import OBJECTIVE_MODIFIERS, TokenBatch
from simlab.theory import acrl
from simlab.theory.bounds import log_slope
from simlab.theory.expectation import softmax
from tests.theory.strategies import laws


def test_eight_cases_spelled_out():
    # Fig. 3 (Y > X) enhances I and III, Fig. 5 (Y < X) enhances II and IV.
    found = {(row["quadrant"], row["level"] > 1): row["enhanced"] for row in acrl.sign_cases()}
    assert found == {
        ("I", True): True,
        ("II", True): False,
        ("III", True): True,
        ("IV", True): False,
        ("I", False): False,
        ("II", False): True,
        ("III", False): False,
        ("IV", False): True,
    }


def test_weights_are_those_of_the_objective():
    rng = np.random.default_rng(0)
    train, infer = rng.uniform(0.05, 0.9, size=(2, 6, 4))
    advantages = np.broadcast_to(np.array([1.0, -1, 1, -1, 1, -1])[:, None], (6, 4))
    batch = TokenBatch(
        logp=jnp.zeros((6, 4)),
        logp_train=jnp.asarray(np.log(train), jnp.float32),
        logp_infer=jnp.asarray(np.log(infer), jnp.float32),
        rewards=jnp.zeros(6),
        mask=jnp.ones((6, 4), bool),
        group_size=6,
    )
    distance = np.abs(train - infer).mean()
    stage = OBJECTIVE_MODIFIERS["acrl"].stage
    theirs = np.asarray(
        type(stage)(0.65, 3.0, float(distance / 1.5), "batch")(batch, jnp.asarray(advantages, jnp.float32))
    )
    ours = acrl.acrl_weight(advantages, train, infer, 1.5, 0.65, 3.0)
    np.testing.assert_allclose(theirs, ours, rtol=1e-5)


@given(laws())
def test_entropy_change_is_the_derivative(pair):
    probs = pair[0][0]
    change = acrl.entropy_change(probs[None])[0]
    for token in range(len(probs)):
        exact = acrl.entropy_after_step(probs, token, 1e-6) - acrl.entropy_after_step(probs, token, -1e-6)
        assert change[token] == pytest.approx(exact / 2e-6, abs=2e-7)


@given(laws())
def test_rewarding_rare_tokens_raises_entropy(pair):
    probs = pair[0]
    change = acrl.entropy_change(probs)[0]
    if (change < -1e-12).any():
        assert probs[0][change > 1e-12].max(initial=0) < probs[0][change < -1e-12].min()
    np.testing.assert_array_equal(acrl.entropy_change(probs, -1.0)[0], -change)


def test_remainder_is_second_order():
    probs = softmax(np.array([[0.0, 1.0, -2.0, 0.5]]))
    etas = np.geomspace(1e-4, 1e-2, 5)
    change = acrl.entropy_change(probs)[0, 1]
    remainder = np.array([acrl.entropy_after_step(probs[0], 1, eta) - eta * change for eta in etas])
    assert log_slope(etas, remainder) == pytest.approx(2, abs=0.05)


def test_quadrants_cancel_without_acrl_and_do_not_with_it():
    rng = np.random.default_rng(0)
    logits = 1.5 * rng.normal(size=(2000, 16))
    train, infer = softmax(logits), softmax(logits + 0.3 * rng.normal(size=logits.shape))
    found = acrl.entropy_by_quadrant(train, infer, 1.5, 0.65, 3.0)
    # Advantages of both signs with equal chances: no net change without weights.
    assert abs(sum(row["plain"] for row in found.values())) < 1e-12
    assert sum(row["acrl"] for row in found.values()) > 1e-4
    below = acrl.entropy_by_quadrant(train, infer, 0.5, 0.65, 3.0)
    assert sum(row["acrl"] for row in below.values()) < -1e-4
