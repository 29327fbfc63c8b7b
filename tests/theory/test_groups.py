"""Expectations over groups, and moments of group gradients, against brute force over all groups."""

from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest

from simlab.models.tabular import enumerate_sequences
from simlab.objectives import ADVANTAGES as OBJECTIVE_ADVANTAGES
from simlab.objectives import TokenBatch
from simlab.theory.expectation import noisy_pair, random_logits
from simlab.theory.group_moments import Weighting, fix_weights, group_gradient_moments
from simlab.theory.groups import ADVANTAGES, compositions, group_gap, multinomial_ways

REWARDS = {
    "binary": np.array([0.0, 1.0, 1.0, 0.0]),
    "three values": np.array([-0.5, 1.0, 0.25, 1.0]),
    "all different": np.array([0.1, 0.2, 0.4, 0.8]),
    "all equal": np.full(4, 0.7),
}
OBJECTIVES_NAMES = {"centered": "grpo_no_std", "rloo": "rloo", "grpo": "grpo"}
SPACE = enumerate_sequences(2, 2)
PAIR = noisy_pair(SPACE, random_logits(SPACE, 0), 0.5)


def advantages(name, rewards):
    """One group's advantages, from the definition."""
    if len(rewards) == 1 or np.ptp(rewards) == 0:
        return np.zeros(len(rewards))
    from_mean = rewards - rewards.mean()
    if name == "rloo":
        return np.array([r - np.delete(rewards, i).mean() for i, r in enumerate(rewards)])
    return from_mean / (rewards.std(ddof=1) + 1e-6) if name == "grpo" else from_mean


def test_compositions_are_all_groups():
    counts = compositions(5, 3)
    assert len({tuple(row) for row in counts}) == len(counts) == 21
    assert (counts.sum(1) == 5).all()
    assert multinomial_ways(counts).sum() == 3**5
    with pytest.raises(ValueError, match="40 kinds of samples in groups of 16"):
        compositions(16, 40)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_are_those_of_the_objectives(name):
    values = np.array([0.0, 0.5, 2.0])
    for group in ([0, 1, 1, 2], [2, 2, 2, 2], [0, 0, 0, 1], [1], [0, 2]):
        rewards = values[group]
        counts = np.bincount(group, minlength=3)
        ours = [float(ADVANTAGES[name](own, counts, values)) for own in rewards]
        np.testing.assert_allclose(ours, advantages(name, rewards), atol=1e-14)
        row = jnp.zeros((len(group), 1))
        batch = TokenBatch(row, row, row, jnp.asarray(rewards), jnp.ones((len(group), 1), bool), len(group))
        theirs = OBJECTIVE_ADVANTAGES[OBJECTIVES_NAMES[name]](batch, jnp.ones(len(group), bool))
        # float32 sums of at most four numbers of size 2, divided by a std of at least 0.25.
        np.testing.assert_allclose(ours, np.asarray(theirs), atol=5e-6)


@pytest.mark.parametrize("kind", REWARDS)
@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("size", [2, 3])
def test_group_gap_against_all_groups(name, size, kind):
    rewards = REWARDS[kind]
    u = np.random.default_rng(3).normal(size=4)

    def value(own, others):
        total = 0.0
        for chosen in product(range(4), repeat=size):
            chance = own[chosen[0]] * np.prod(others[list(chosen[1:])])
            total += chance * advantages(name, rewards[list(chosen)])[0] * u[chosen[0]]
        return total

    p, q = PAIR.probs_train, PAIR.probs_infer
    gap = group_gap(PAIR, u, rewards, ADVANTAGES[name], size)
    assert gap["exact"] == pytest.approx(value(q, q) - value(p, p), abs=1e-14)
    assert gap["own"] == pytest.approx(value(q, p) - value(p, p), abs=1e-14)
    assert gap["others"] == pytest.approx(value(p, q) - value(p, p), abs=1e-14)


@pytest.mark.parametrize("kind", ["binary", "three values"])
@pytest.mark.parametrize("name", ADVANTAGES)
def test_group_gap_to_first_order(name, kind):
    space = enumerate_sequences(3, 3)
    rewards = np.resize(REWARDS[kind][[0, 1, 2]], 27)
    u = np.random.default_rng(3).normal(size=27)
    errors = []
    for noise_std in (0.02, 0.01):
        gap = group_gap(
            noisy_pair(space, random_logits(space, 0), noise_std), u, rewards, ADVANTAGES[name], 4
        )
        errors.append(abs(gap["exact"] - gap["double_sum"] - gap["cross_samples"]))
        assert gap["printed"] == pytest.approx(gap["double_sum"] / 3, rel=1e-10)
    # Second order: half the noise_std, a quarter of the error.
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)


def moments_by_enumeration(weighting, rewards, name, size):
    """Mean and variance over all groups; a fractional step counts as either neighbor."""
    low, share = np.floor(weighting.steps), weighting.steps % 1
    first, second = np.zeros(SPACE.table_shape), 0.0
    for chosen in product(range(4), repeat=size):
        for ups in product((0, 1), repeat=size):
            rows = list(chosen)
            chance = np.prod(PAIR.probs_infer[rows]) * np.prod(
                [share[i] if up else 1 - share[i] for i, up in zip(rows, ups, strict=True)]
            )
            if chance == 0:
                continue
            alive = [i for i in rows if weighting.in_loss[i]]
            mean_step = (low[rows] + ups).sum() / size
            gradient = np.zeros(SPACE.table_shape)
            for i, a in zip(alive, advantages(name, rewards[alive]) if alive else [], strict=True):
                weights = weighting.weights(mean_step, int(np.sign(a)))
                gradient += a / len(alive) * PAIR.gradient(np.eye(4)[i][:, None] * weights)
            first += chance * gradient
            second += chance * (gradient**2).sum()
    return first, second - (first**2).sum()


def weigh_by_both(mean_step, sign):
    """Weights that depend on everything a correction may see."""
    base = np.random.default_rng(5).uniform(0.5, 2.0, size=(4, 2))
    return np.minimum(base ** (sign * (1 - 0.3 * mean_step)), 1.7)


WEIGHTINGS = {
    "own sample": fix_weights(weigh_by_both(0.0, 1)),
    "sample dropped": fix_weights(weigh_by_both(0.0, 1), np.array([True, False, True, True])),
    "group": Weighting(weigh_by_both, np.array([0.0, 1, 3, 2]), np.ones(4, bool)),
    "group, fractions": Weighting(weigh_by_both, np.array([0.0, 0.25, 2.0, 1.5]), np.ones(4, bool)),
    "group, dropped": Weighting(weigh_by_both, np.array([0.0, 1, 3, 2]), np.array([True, True, True, False])),
}


@pytest.mark.parametrize("kind", REWARDS)
@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("size", [2, 3])
def test_moments_against_all_groups(weighting, name, size, kind):
    chosen, rewards = WEIGHTINGS[weighting], REWARDS[kind]
    mean, variance = group_gradient_moments(PAIR, chosen, rewards, ADVANTAGES[name], size)
    first, spread = moments_by_enumeration(chosen, rewards, name, size)
    # Sums of at most 500 terms of size one, through transforms: 1e-13.
    np.testing.assert_allclose(mean, first, rtol=0, atol=1e-13)
    assert variance == pytest.approx(spread, abs=1e-12)
    assert (np.abs(first).max() > 1e-3) == (kind != "all equal")


def test_groups_of_one_are_refused():
    with pytest.raises(ValueError, match="at least 2 samples"):
        group_gradient_moments(PAIR, fix_weights(np.ones((4, 2))), REWARDS["binary"], ADVANTAGES["rloo"], 1)
