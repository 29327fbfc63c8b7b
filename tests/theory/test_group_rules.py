"""Moments of rules that see the whole group, against simlab's objectives over all groups."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.models.tabular import enumerate_sequences
from simlab.objectives import (
    ADVANTAGES,
    AGGREGATIONS,
    Objective,
    TokenBatch,
    get_objective,
    vocabulary_coefficients,
)
from simlab.theory.counterparts import enumerate_moments
from simlab.theory.expectation import PolicyPair, noisy_pair, random_logits, random_rewards
from simlab.theory.group_moments import fix_weights, group_gradient_moments
from simlab.theory.group_rules import GROUP_RULES, all_groups, group_rule_qualities, rloo
from simlab.theory.groups import leave_one_out

SIZE = 3


def objective(name: str) -> Objective:
    """RLOO advantages, summed over tokens, divided by the number of sequences."""
    return replace(
        get_objective(name), advantage=ADVANTAGES["rloo"], aggregation=AGGREGATIONS["seq-mean-token-sum"]
    )


@pytest.fixture(scope="module")
def case() -> tuple[PolicyPair, np.ndarray]:
    """Engines far enough apart that masks drop some tokens of most groups."""
    space = enumerate_sequences(2, 2)
    return noisy_pair(space, random_logits(space, 3), 0.6, seed=3), random_rewards(space, 1)


def moments(pair: PolicyPair, gradients: np.ndarray, members: np.ndarray) -> tuple[np.ndarray, float]:
    chance = pair.probs_infer[members].prod(1)
    mean = chance @ gradients
    return mean, float(chance @ (gradients**2).sum(1) - mean @ mean)


@pytest.mark.parametrize(("rule", "name"), [("M2PO", "m2po"), ("M2 mask", "gpg+m2_mask")])
def test_moments_of_masks_are_those_of_the_objective(case, rule, name):
    pair, rewards = case
    members = all_groups(len(rewards), SIZE)
    found = moments(pair, GROUP_RULES[rule](pair, rewards, members), members)
    expected = enumerate_moments(pair, objective(name), rewards, SIZE)
    np.testing.assert_allclose(found[0], expected[0].ravel(), rtol=1e-5, atol=1e-7)
    assert found[1] == pytest.approx(expected[1], rel=1e-5)
    plain = enumerate_moments(pair, objective("ipo" if rule == "M2PO" else "gpg"), rewards, SIZE)
    assert np.abs(plain[0] - expected[0]).max() > 1e-3


@pytest.mark.parametrize(
    ("rule", "name"), [("score centering", "gpg+score_centering"), ("IPO, centered", "ipo+score_centering")]
)
def test_moments_of_score_centering_are_those_of_the_objective(case, rule, name):
    pair, rewards = case
    members = all_groups(len(rewards), SIZE)
    train, infer = (
        jnp.log(jnp.asarray(x[pair.space.contexts[members]], jnp.float32)) for x in (pair.train, pair.infer)
    )
    tokens = jnp.asarray(pair.space.tokens[members])

    def one_group(train, infer, tokens, rewards):
        at = [jnp.take_along_axis(x, tokens[..., None], -1)[..., 0] for x in (train, infer)]
        batch = TokenBatch(
            logp=at[0],
            logp_train=at[0],
            logp_infer=at[1],
            rewards=rewards,
            mask=jnp.ones(tokens.shape, bool),
            group_size=SIZE,
            tokens=tokens,
            logp_vocabulary=train,
            logp_infer_vocabulary=infer,
        )
        return vocabulary_coefficients(objective(name), batch)

    scores = jnp.asarray(rewards[members], jnp.float32)
    coefficients = np.asarray(jax.jit(jax.vmap(one_group))(train, infer, tokens, scores), np.float64)
    gradients = np.zeros((len(members), *pair.train.shape))
    for i, t in np.ndindex(coefficients.shape[1:3]):
        contexts, c = pair.space.contexts[members[:, i], t], coefficients[:, i, t]
        rows = np.arange(len(members))
        gradients[rows, contexts] += c - pair.train[contexts] * c.sum(1, keepdims=True)
    found = GROUP_RULES[rule](pair, rewards, members)
    np.testing.assert_allclose(found, gradients.reshape(len(members), -1), rtol=1e-4, atol=1e-6)


def test_equal_engines_leave_rloo_alone(case):
    pair, rewards = case
    same = PolicyPair(pair.space, pair.train, pair.train)
    members = all_groups(len(rewards), SIZE)
    mean, variance = group_gradient_moments(
        same, fix_weights(np.ones(pair.space.tokens.shape)), rewards, leave_one_out, SIZE
    )
    for name in ("M2PO", "M2 mask"):
        found = moments(same, GROUP_RULES[name](same, rewards, members), members)
        np.testing.assert_allclose(found[0], mean.ravel(), atol=1e-14)
        assert found[1] == pytest.approx(variance)
    # Centering subtracts nothing where the mean of the score is zero, in expectation over the group.
    for name in ("score centering", "IPO, centered"):
        found = moments(same, GROUP_RULES[name](same, rewards, members), members)
        np.testing.assert_allclose(found[0], mean.ravel(), atol=1e-14)


def test_advantages_leave_out_what_is_not_present():
    rewards = np.array([[1.0, 0.0, 5.0]])
    np.testing.assert_allclose(rloo(rewards, np.array([[True, True, False]])), [[1.0, -1.0, 0.0]])
    assert (rloo(rewards, np.array([[True, False, False]])) == 0).all()


def test_too_many_groups_are_rejected(case):
    with pytest.raises(ValueError, match="groups must be at most 2\\^20, got 4\\^11"):
        group_rule_qualities(case[0], case[1], 11)
