"""C1-C4, C7, C8, C14, and D.3's caveat, over random groups and through the objectives themselves."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from scipy import optimize

from simlab.objectives import token_coefficients
from simlab.theory import cancellation
from tests.theory.strategies import Group, groups, weighted_groups

# Sums of at most 8 float32 terms, each off by a few roundings of 6e-8.
SINGLE = 2e-6


def rounded_center(group):
    """How much larger than SINGLE a leftover may be: the advantages themselves sum to zero only so far.

    The mean of the rewards is off by up to 8 roundings of mean |r|, in float32, and all G advantages with
    it: their sum is off by SINGLE sum |r|, which is large beside sum |A| when the rewards nearly agree.
    """
    size = np.abs(group.advantages).sum()
    return 1 + np.abs(group.rewards).sum() / size if size > 0 else 1.0


@cache
def compiled(name, **overrides):
    return jax.jit(partial(token_coefficients, name, **overrides))


def leftover(name, group, mask=None, **overrides):
    batch = cancellation.group_batch(
        group.log_ratio[None], group.rewards[None], None if mask is None else mask[None]
    )
    column = np.asarray(compiled(name, **overrides)(batch), np.float64)[:, 0]
    return column.sum(), np.abs(column).sum()


@pytest.mark.parametrize("name", ["grpo", "dapo", "cispo", "rloo"])
@given(group=groups(shared=0.18))
def test_token_weights_cancel_inside_the_clip(name, group):
    total, size = leftover(name, group)
    assert abs(total) <= SINGLE * rounded_center(group) * size


def test_nearly_equal_rewards_leave_rounding_of_mean():
    # An odd number of float32 steps apart, so that the mean is between two numbers. Such a pair once failed
    # the test above, whose tolerance was SINGLE alone.
    group = Group(np.full((2, 1), 0.1), np.array([1.0, 1.0 + 85 * 2.0**-23]), np.ones(2, int))
    total, size = leftover("cispo", group)
    assert SINGLE * size < abs(total) <= SINGLE * rounded_center(group) * size


@pytest.mark.parametrize("name", ["dapo", "cispo", "dr_grpo", "grpo_fix"])
@given(group=groups(shared=0.18))
def test_sums_over_tokens_cancel_at_any_lengths(name, group):
    total, size = leftover(name, group, group.mask)
    assert abs(total) <= SINGLE * rounded_center(group) * size


@given(group=groups(shared=0.18))
def test_means_over_sequences_leave_what_the_lengths_say(group):
    total, size = leftover("grpo", group, group.mask, advantage="grpo_no_std")
    expected = np.exp(group.log_ratio[0, 0]) * (group.advantages / group.lengths).mean()
    assert total == pytest.approx(expected, abs=SINGLE * (rounded_center(group) * size + abs(expected)))


@given(group=groups(shared=0.5, spread=0.5))
def test_sequence_coupling_leaves_what_the_equation_says(group):
    rho, u = cancellation.sequence_coupled(group.log_ratio)
    weights = rho * u
    with jax.enable_x64():
        log_ratio, advantages = jnp.asarray(group.log_ratio), jnp.asarray(group.advantages)
        gradient = jax.grad(lambda x: jnp.mean(advantages * jnp.exp(x.sum(1))))(log_ratio)
        by_autodiff = float(gradient[:, 0].sum())
    coefficient = cancellation.coefficient_of_shared_token(weights, group.advantages)
    assert coefficient == pytest.approx(by_autodiff, abs=1e-12)
    left, right = cancellation.pair_leftover(group.log_ratio[:2], 0.7)
    assert left == pytest.approx(right, abs=1e-12)


@given(group=groups(shared=0.5, spread=0.5))
def test_gspo_leaves_the_length_normalized_form(group):
    length = group.log_ratio.shape[1]
    weights = np.exp(group.log_ratio.mean(1))
    total, _ = leftover("gspo", group, clip_low=1.0, clip_high=1e3, advantage="grpo_no_std")
    expected = cancellation.coefficient_of_shared_token(weights, group.advantages) / length
    sizes = np.abs(group.advantages) @ weights / len(weights) / length
    assert total == pytest.approx(expected, abs=SINGLE * rounded_center(group) * sizes)


@pytest.mark.parametrize("weight", [0.3, 0.79, 0.81, 1.0, 1.19, 1.21, 4.0])
def test_clip_sums_of_values_and_gradients(weight):
    own = cancellation.clip_leftover(weight, 0.5, 0.2)
    preset = cancellation.objective_clip_leftover(weight, 0.2)
    assert own["value"] == pytest.approx(preset["value"], abs=1e-6)
    assert own["gradient"] == pytest.approx(preset["gradient"], abs=1e-6)
    if weight > 1.2:
        assert own["value"] == pytest.approx(0.5 * (1.2 - weight))
        assert own["gradient"] == pytest.approx(-0.5 * weight)
    elif weight < 0.8:
        assert own["value"] == pytest.approx(0.5 * (weight - 0.8))
        assert own["gradient"] == pytest.approx(0.5 * weight)
    else:
        assert own == {"value": 0.0, "gradient": 0.0}


@pytest.mark.parametrize("name", ["grpo_fix", "grpo_fix_weight"])
@given(group=groups())
def test_sign_free_clips_cancel_everywhere(name, group):
    total, size = leftover(name, group)
    assert abs(total) <= SINGLE * rounded_center(group) * size


@given(group=groups())
def test_the_sign_dependent_clip_does_not(group):
    total, size = leftover("grpo", group)
    outside = abs(group.log_ratio[0, 0]) > np.log(1.25) + 1e-3
    if outside and np.ptp(group.rewards) > 0:
        assert abs(total) > 0.9 * size


@pytest.mark.parametrize("name", ["dfpo_min", "dfpo_orth", "dfpo_posorth", "dfpo_rebalance"])
@given(group=groups(shared=0.3, spread=0.3))
def test_dfpo_cancels_at_equal_lengths(name, group):
    total, _ = leftover(name, group)
    _, size = leftover("dfpo_none", group)
    assert abs(total) <= SINGLE * rounded_center(group) * size


@pytest.mark.parametrize("name", ["dfpo_min", "dfpo_orth", "dfpo_posorth", "dfpo_rebalance"])
def test_dfpo_does_not_cancel_at_unequal_lengths(name):
    rng = np.random.default_rng(0)
    log_ratio = 0.01 * rng.normal(size=(1, 8, 5))
    log_ratio[:, :, 0] = 0.0
    mask = np.arange(5)[None, :] < np.array([1, 5, 2, 5, 1, 5, 3, 5])[:, None]
    batch = cancellation.group_batch(log_ratio, (np.arange(8) % 2)[None].astype(float), mask[None])
    total, size = cancellation.objective_leftover(name, batch)
    assert abs(total[0]) > 0.1 * size[0]


def test_the_length_counterexample_is_the_smallest():
    found = cancellation.length_counterexample()
    assert found["lengths"].tolist() == [1, 2]
    assert abs(found["constraint"]) < 1e-12
    assert found["shared"] == pytest.approx(-0.125)


@given(weighted_groups())
def test_min_replace_shrinks_and_keeps_signs(group):
    weights, advantages = group
    out = cancellation.transform_weights("dfpo_min", weights[None], advantages[None])[0]
    assert (out > 0).all()
    assert (out <= weights * (1 + 1e-6)).all()
    assert np.ptp(out) == 0


@given(weighted_groups())
def test_min_replace_bias_is_bounded(group):
    weights, advantages = group
    scores = np.random.default_rng(0).normal(size=(8, 12))
    bias, by_spread, by_delta = cancellation.min_replace_bias(weights, advantages, scores)
    assert bias <= by_spread * (1 + 1e-9) + 1e-12
    assert by_spread <= by_delta * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("name", ["dfpo_min", "dfpo_orth", "dfpo_posorth", "dfpo_rebalance"])
@given(group=weighted_groups())
def test_transforms_balance_the_group(name, group):
    weights, advantages = group
    out = cancellation.transform_weights(name, weights[None], advantages[None])
    if (advantages != 0).any():
        assert abs(cancellation.constraint(out, advantages[None], weights[None])[0]) < SINGLE
    if name != "dfpo_orth":
        assert (out >= 0).all()


def projection_by_root(weights, advantages):
    """argmin |v - w| with A v = 0, v >= 0: v = max(w - m A, 0) at the root m of the constraint."""

    def constraint(m):
        return advantages @ np.maximum(weights - m * advantages, 0)

    used = advantages != 0
    reach = np.abs(weights[used] / advantages[used]).max() + 1
    m = optimize.brentq(constraint, -reach, reach, xtol=1e-15, rtol=1e-14, maxiter=500)
    return np.maximum(weights - m * advantages, 0)


def random_problems(count, size, spread):
    rng = np.random.default_rng(7)
    weights = np.exp(spread * rng.normal(size=(count, size)))
    advantages = rng.normal(size=(count, size))
    return weights, advantages - advantages.mean(1, keepdims=True)


@pytest.mark.parametrize(("size", "spread"), [(2, 0.3), (5, 2.0), (16, 1.0)])
def test_projection_against_a_root_finder_on_thousands_of_groups(size, spread):
    weights, advantages = random_problems(1500, size, spread)
    found = cancellation.transform_weights("dfpo_posorth", weights, advantages)
    expected = np.stack([projection_by_root(*group) for group in zip(weights, advantages, strict=True)])
    if size > 2:
        assert (expected == 0).any()
    scale = np.abs(weights).max(1, keepdims=True)
    # float32: a few roundings on numbers up to the largest weight, amplified by the multiplier's division.
    np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=1e-5)


def test_root_finder_is_the_minimum_of_a_general_solver():
    weights, advantages = random_problems(60, 5, 1.0)
    for w, a in zip(weights, advantages, strict=True):
        solved = optimize.minimize(
            lambda v, w=w: ((v - w) ** 2).sum() / 2,
            np.full(5, w.min()),
            jac=lambda v, w=w: v - w,
            bounds=[(0, None)] * 5,
            constraints={"type": "eq", "fun": lambda v, a=a: a @ v, "jac": lambda _, a=a: a},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        np.testing.assert_allclose(projection_by_root(w, a), solved.x, atol=1e-5)


@given(weighted_groups())
def test_transforms_do_not_zero_the_gradient(group):
    weights, advantages = group
    scores = np.random.default_rng(0).normal(size=(8, 20))
    for name in ("dfpo_min", "dfpo_orth", "dfpo_rebalance"):
        out = cancellation.transform_weights(name, weights[None], advantages[None])[0]
        after = cancellation.remaining_gradient(out, advantages, scores)
        # Generic scores have norm about sqrt(20) and are nearly orthogonal.
        assert after >= 0.1 * np.linalg.norm(out * advantages)
    same = np.ones((8, 20))
    out = cancellation.transform_weights("dfpo_min", weights[None], advantages[None])[0]
    # Identical scores: the degenerate case in which nothing is left.
    assert cancellation.remaining_gradient(out, advantages, same) < 1e-6 * (1 + np.abs(advantages).sum())


def test_codimension_of_a_plane_and_of_a_line():
    rng = np.random.default_rng(0)
    scales = np.geomspace(1e-2, 1e-1, 5)
    assert cancellation.near_zero_exponent(rng.normal(size=400_000), scales) == pytest.approx(1, abs=0.05)
    both = np.linalg.norm(rng.normal(size=(400_000, 2)), axis=1)
    assert cancellation.near_zero_exponent(both, scales) == pytest.approx(2, abs=0.15)


def test_presets_without_a_transform_are_refused():
    with pytest.raises(ValueError, match="has no group transform"):
        cancellation.transform_weights("grpo", np.ones((1, 2)), np.ones((1, 2)))
