"""Group transforms: orthogonality, an independent oracle for the projection, and what stop-gradient
leaves."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.objectives import OBJECTIVES, objective_value
from simlab.objectives.transforms import (
    MinReplace,
    NonNegativeProjection,
    OrthogonalProjection,
    Scaled,
    TruncateAndRebalance,
    Unchanged,
)
from tests.objectives.batches import batch_of, coefficients_of, value_of

G = 4
TRANSFORMS = {
    "min": MinReplace(),
    "orth": OrthogonalProjection(),
    "posorth": NonNegativeProjection(),
    "rebalance": TruncateAndRebalance(),
}
compiled = {name: jax.jit(transform) for name, transform in TRANSFORMS.items()}


def projection_by_enumeration(weights, advantages):
    """Eq. 51 in float64: the best of the projections onto every face of the non-negative orthant."""
    best = np.zeros(len(weights))
    for face in product([False, True], repeat=len(weights)):
        face = np.array(face)
        a = np.where(face, advantages, 0)
        v = np.where(face, weights - (a @ weights / (a @ a) if a.any() else 0) * a, 0)
        if (v >= 0).all() and abs(advantages @ v) < 1e-9 * (1 + np.abs(advantages).sum()):
            best = min(best, v, key=lambda u: np.sum((u - weights) ** 2))
    return best


def groups():
    weight = st.floats(0.125, 8, width=32)
    reward = st.sampled_from([0.0, 0.25, 0.5, 1.0])
    return st.tuples(st.lists(weight, min_size=G, max_size=G), st.lists(reward, min_size=G, max_size=G))


@given(groups())
def test_projection_is_the_best_of_all_faces(group):
    weights, rewards = (np.float32(x) for x in group)
    advantages = rewards - rewards.mean()
    actual = np.asarray(compiled["posorth"](weights, advantages, np.ones(G, bool)))
    expected = projection_by_enumeration(np.float64(weights), np.float64(advantages))
    # Sums of four products up to 8, one division, one product: some 16 roundings at that size.
    np.testing.assert_allclose(actual, expected, atol=16 * 8 * 2.0**-24 * 4)
    assert (actual >= 0).all()


@given(groups(), st.sampled_from(sorted(TRANSFORMS)))
def test_advantage_weighted_sum_is_zero(group, name):
    weights, rewards = (np.float32(x) for x in group)
    advantages = rewards - rewards.mean()
    result = np.asarray(compiled[name](weights, advantages, np.ones(G, bool)))
    scale = np.abs(advantages).sum() * max(8, np.abs(result).max())
    assert abs(np.float64(advantages) @ np.float64(result)) <= 16 * 2.0**-24 * scale
    if name == "rebalance":
        assert (result > 0).all()
    if name == "min":
        assert (result == weights.min()).all()


def test_numbers_by_hand():
    weights, advantages = jnp.float32([1, 2, 3]), jnp.float32([1, 1, -2])
    real = jnp.ones(3, bool)
    # A.w = -3, A.A = 6: w + A / 2.
    np.testing.assert_allclose(TRANSFORMS["orth"](weights, advantages, real), [1.5, 2.5, 2], rtol=1e-6)
    # Negative side 6, positive 3: the negative side is halved (Eq. 55 with the right sign).
    np.testing.assert_array_equal(TRANSFORMS["rebalance"](weights, advantages, real), [1, 2, 1.5])
    np.testing.assert_array_equal(TRANSFORMS["rebalance"](weights, -advantages, real), [1, 2, 1.5])
    np.testing.assert_array_equal(TRANSFORMS["min"](weights, advantages, real), [1, 1, 1])
    np.testing.assert_array_equal(Scaled(0.5)(weights, advantages, real), [0.5, 1, 1.5])
    np.testing.assert_array_equal(Unchanged()(weights, advantages, real), weights)
    # Orth-Proj would make the first entry negative; the projection drops it: 4 (w - 3 m) and 6 leave m = 1.2.
    weights, advantages = jnp.float32([0.1, 4, 1]), jnp.float32([1, 1, -2])
    assert TRANSFORMS["orth"](weights, advantages, real)[0] > -1
    np.testing.assert_allclose(
        TRANSFORMS["posorth"](weights, advantages, real),
        projection_by_enumeration(np.array([0.1, 4, 1]), np.array([1.0, 1, -2])),
        atol=1e-6,
    )


@pytest.mark.parametrize("name", TRANSFORMS)
def test_sequences_without_tokens_take_no_part(name):
    weights, advantages = jnp.float32([1.2, 0.9, 1.1, 1e-3]), jnp.float32([1, -2, 1, 5])
    real = jnp.asarray([True, True, True, False])
    alone = TRANSFORMS[name](weights[:3], advantages[:3], real[:3])
    np.testing.assert_allclose(TRANSFORMS[name](weights, advantages, real)[:3], alone, rtol=1e-6)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_one_sided_groups_stay_finite(name):
    """Only positive advantages (a baseline over all, the others rejected), and none at all."""
    weights, real = jnp.float32([1.2, 0.9, 1.1]), jnp.ones(3, bool)
    for advantages in ([1, 0, 2], [0, 0, 0], [-1, -1, -1]):
        result = np.asarray(TRANSFORMS[name](weights, jnp.float32(advantages), real))
        assert np.isfinite(result).all()
        if name in ("posorth", "rebalance"):
            np.testing.assert_array_equal(result[np.array(advantages) != 0], 0)


# Length-normalized ratios 1.001, 0.999, 1.0001, 1: post-clip (3e-4, 4e-4) by the sign of A = +, -, -, +.
LOG_S = np.log([1.001, 0.999, 1.0001, 1.0])
POST_CLIP = np.array([1.0004, 0.9997, 1.0001, 1.0])
ADVANTAGES = np.array([0.5, -0.5, -0.5, 0.5])


def dfpo_batch():
    return batch_of(np.repeat(LOG_S[:, None], 2, axis=1), [1, 0, 0, 1], 4)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("dfpo_none", POST_CLIP),
        ("dfpo_min", np.full(4, 0.9997)),
        ("dfpo_orth", POST_CLIP - (ADVANTAGES @ POST_CLIP) / (ADVANTAGES @ ADVANTAGES) * ADVANTAGES),
        ("dfpo_scale", 0.5 * POST_CLIP),
    ],
)
def test_coefficients_equal_transformed_weights_when_clipped(name, weights):
    coefficients = np.asarray(coefficients_of(name, dfpo_batch(), advantage="grpo_no_std"))
    expected = np.repeat((ADVANTAGES * weights / 4 / 2)[:, None], 2, axis=1)
    # The ratio is exp of a mean of differences of numbers of order one: some 2^-22.
    np.testing.assert_allclose(coefficients, expected, rtol=2e-6)
    gspo = np.asarray(coefficients_of("gspo", dfpo_batch(), advantage="grpo_no_std"))
    np.testing.assert_array_equal(gspo[:2], 0)


def test_cancelling_transform_has_zero_value_not_gradient():
    """cancel Cor. 3.4: sum A s = 0 is the value; the coefficients are not zero."""
    for name in ("dfpo_min", "dfpo_orth", "dfpo_posorth", "dfpo_rebalance"):
        assert abs(value_of(name, dfpo_batch())) < 1e-6
        assert np.abs(coefficients_of(name, dfpo_batch())).min() > 0.05


def test_without_stop_gradient_the_smallest_weight_is_moved_too():
    """d/dlogp of mean_i A_i w_min mean_t logp: the score part, plus all of it on the
    smallest weight, which is not clipped.
    """
    log_s = np.log([1.0002, 0.9999, 1.0001, 1.0])
    batch = batch_of(np.repeat(log_s[:, None], 2, axis=1), [1, 0, 0, 1], 4)
    logp = -1 + log_s
    expected = ADVANTAGES * 0.9999 / 8
    expected[1] += np.sum(ADVANTAGES * logp) / 4 * 0.9999 / 2
    coefficients = np.asarray(coefficients_of("dfpo_min_no_stop", batch, advantage="grpo_no_std"))
    np.testing.assert_allclose(coefficients[:, 0], expected, rtol=1e-5)


def test_transforms_reject_token_weights_and_advantages():
    with pytest.raises(ValueError, match="one weight per sequence"):
        objective_value(
            OBJECTIVES["dfpo_min"].__class__(
                OBJECTIVES["grpo"].advantage, OBJECTIVES["grpo"].surrogate, transform=MinReplace()
            ),
            dfpo_batch(),
        )
    with pytest.raises(ValueError, match="one per token"):
        objective_value(
            "dfpo_min", batch_of(np.zeros((2, 2)), [1, 0], 2, values=jnp.zeros((2, 2))), advantage="gae"
        )
