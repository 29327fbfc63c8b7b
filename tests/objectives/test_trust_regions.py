"""Trust regions, rejections and corrections of 2026 against formulas written out in float64 numpy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import TokenBatch, named, prepared, resolve, rollout_terms, token_coefficients
from tests.objectives.batches import coefficients_of, random_batch, value_of

ANCHORED = ("dppo_tv", "dppo_kl", "ipo", "kpop", "drpo")


def far_batch(seed: int) -> TokenBatch:
    """Draw probabilities up to one, so that every trust region binds on both sides."""
    batch = random_batch(seed, mismatch=0.0)
    rng = np.random.default_rng(seed)
    shape = batch.mask.shape
    columns = {
        name: jnp.asarray(-rng.exponential(0.8, shape), jnp.float32)
        for name in ("logp", "logp_train", "logp_infer")
    }
    return replace(batch, **columns)


def columns(batch: TokenBatch, anchor: str = "rollout"):
    """Return log p, log a, GRPO's advantages and the mask in float64."""
    base = batch.logp_infer if anchor == "rollout" else batch.logp_train
    rewards = np.asarray(batch.rewards, np.float64).reshape(-1, batch.group_size)
    centered = rewards - rewards.mean(1, keepdims=True)
    advantages = (centered / (rewards.std(1, ddof=1, keepdims=True) + 1e-6)).reshape(-1, 1)
    return np.asarray(batch.logp, np.float64), np.float64(base), advantages, np.asarray(batch.mask)


def binary_kl(x, y, floor):
    x, y = np.clip(x, floor, 1 - floor), np.clip(y, floor, 1 - floor)
    return x * np.log(x / y) + (1 - x) * np.log((1 - x) / (1 - y))


def symmetric(x, y, floor):
    return np.maximum(binary_kl(x, y, floor), binary_kl(y, x, floor))


def dppo_tv(logp, base, a):
    gap = np.exp(logp) - np.exp(base)
    keep = np.where(a > 0, gap <= 0.2, gap >= -0.2)
    return a * np.minimum(np.exp(logp - base), 20) * keep


def dppo_kl(logp, base, a):
    p, q = np.exp(logp), np.exp(base)
    divergence = q * (base - logp) + (1 - q) * np.log((1 - q + 1e-8) / (1 - p + 1e-8))
    dropped = (divergence > 0.05) & np.where(a > 0, p > q, p < q)
    return a * np.minimum(np.exp(logp - base), 20) * ~dropped


def ipo(logp, base, a):
    keep = np.abs(np.exp(logp) - np.exp(base)) <= 0.3
    return a * np.minimum(np.exp(logp - base), 1e4) * keep


def kpop(logp, base, a):
    return a * np.exp(logp - base) * (symmetric(np.exp(logp), np.exp(base), 1e-6) <= 0.1)


def drpo(logp, base, a):
    gap = np.exp(logp) - np.exp(base)
    return np.exp(logp - base) * (a - np.abs(a) * gap / 12.5)


ORACLES = {"dppo_tv": dppo_tv, "dppo_kl": dppo_kl, "ipo": ipo, "kpop": kpop, "drpo": drpo}


@pytest.mark.parametrize("anchor", ["rollout", "old"])
@pytest.mark.parametrize("name", ANCHORED)
def test_coefficient_is_the_published_formula(name, anchor):
    for seed in range(4):
        batch = far_batch(seed)
        logp, base, a, mask = columns(batch, anchor)
        expected = np.where(mask, ORACLES[name](logp, base, a), 0) / mask.sum()
        np.testing.assert_allclose(
            coefficients_of(name, batch, anchor=anchor), expected, rtol=2e-5, atol=1e-9
        )


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl", "ipo", "kpop"])
def test_both_kept_and_dropped_tokens_occur(name):
    batch = far_batch(0)
    dropped = np.asarray(coefficients_of(name, batch))[np.asarray(batch.mask)] == 0
    assert 0 < dropped.sum() < dropped.size


def test_m2po_drops_the_largest_outward_tokens():
    for seed in range(4):
        batch = far_batch(seed)
        logp, base, a, mask = columns(batch)
        log_w = logp - base
        outward = mask & (a * log_w > 0)
        left = sorted((log_w[outward] ** 2).tolist())
        while left and np.mean(left) > 0.04:
            left.pop()
        most = left[-1] if left else -1.0
        keep = mask & (~outward | (log_w**2 <= most * (1 + 1e-12)))
        assert (mask & ~keep).sum() > 0
        expected = np.where(keep, a * np.exp(log_w), 0) / mask.sum()
        np.testing.assert_allclose(coefficients_of("m2po", batch), expected, rtol=2e-5, atol=1e-9)


def test_rollout_kl_adds_to_dropped_tokens_too():
    batch = far_batch(1)
    logp, base, _, mask = columns(batch)
    difference = np.asarray(coefficients_of("ipo+rollout_kl", batch, rollout_kl_coefficient=0.5))
    difference = difference - coefficients_of("ipo", batch)
    np.testing.assert_allclose(
        difference, np.where(mask, -(logp - base) / mask.sum(), 0), rtol=1e-4, atol=1e-6
    )
    lost = value_of("ipo", batch) - value_of("ipo+rollout_kl", batch, rollout_kl_coefficient=0.5)
    np.testing.assert_allclose(lost, 0.5 * np.mean((logp - base)[mask] ** 2), rtol=1e-5)
    default = value_of("ipo", batch) - value_of("ipo+rollout_kl", batch)
    np.testing.assert_allclose(default, 1e-3 * np.mean((logp - base)[mask] ** 2), rtol=1e-3)


def test_rollout_kl_is_a_token_mean_of_what_rejections_leave():
    batch = far_batch(2)
    terms = rollout_terms(resolve("grpo+kpop_mask"), prepared(batch))
    kept = np.asarray(terms.mask)
    lost = value_of("grpo+kpop_mask", batch)
    lost = lost - value_of("grpo+kpop_mask+rollout_kl", batch, rollout_kl_coefficient=1.0)
    squares = (np.asarray(batch.logp, np.float64) - batch.logp_infer) ** 2
    np.testing.assert_allclose(lost, squares[kept].mean(), rtol=1e-5)


def test_kpop_weights_are_untruncated_and_keep_the_denominator():
    batch = far_batch(3)
    q, mu = np.asarray(batch.logp_train, np.float64), np.asarray(batch.logp_infer, np.float64)
    terms = rollout_terms(named("grpo+kpop"), prepared(batch))
    keep = symmetric(np.exp(q), np.exp(mu), 1e-8) <= 0.1
    mask = np.asarray(batch.mask)
    assert 0 < keep[mask].sum() < mask.sum()
    np.testing.assert_allclose(np.asarray(terms.correction)[mask], (np.exp(q - mu) * keep)[mask], rtol=1e-5)
    np.testing.assert_array_equal(terms.mask, mask)
    wide = rollout_terms(resolve("grpo+kpop", kpop_bound=100.0), prepared(batch))
    assert np.asarray(wide.correction)[mask].max() > 2


def kept_tokens(name: str, batch: TokenBatch, **overrides) -> np.ndarray:
    terms = rollout_terms(resolve(name, **overrides), prepared(batch))
    np.testing.assert_array_equal(terms.correction, 1)
    return np.asarray(terms.mask)


def test_masks_are_the_published_rules():
    batch = far_batch(4)
    mask = np.asarray(batch.mask)
    q, mu = np.exp(np.asarray(batch.logp_train, np.float64)), np.exp(np.asarray(batch.logp_infer, np.float64))
    log_rho = np.log(q / mu)
    longest = np.where(mask, log_rho**2 / 2, 0).max(1, keepdims=True)
    rules = {
        ("kpop_mask", ("kpop_bound", 0.1)): symmetric(q, mu, 1e-8) <= 0.1,
        ("prob_diff", ("prob_diff_bounds", (-0.2, 0.2))): np.abs(q - mu) <= 0.2,
        ("prob_diff", ("prob_diff_bounds", (-0.5, 0.1))): (q - mu >= -0.5) & (q - mu <= 0.1),
        ("trm", ("rejection_bounds", 0.5)): np.broadcast_to(longest <= 0.5, mask.shape),
    }
    for (name, (override, value)), rule in rules.items():
        kept = kept_tokens(f"grpo+{name}", batch, **{override: value})
        np.testing.assert_array_equal(kept, mask & rule)
        assert 0 < kept.sum() < mask.sum()


@pytest.mark.parametrize("threshold", [1e-12, 0.04, 0.3, 100.0])
def test_m2_mask_drops_the_largest_but_never_all(threshold):
    batch = far_batch(5)
    mask = np.asarray(batch.mask)
    squares = (np.asarray(batch.logp_train, np.float64) - batch.logp_infer) ** 2
    left = sorted(squares[mask].tolist())
    while len(left) > 1 and np.mean(left) >= threshold:
        left.pop()
    kept = kept_tokens("grpo+m2_mask", batch, m2_threshold=threshold)
    np.testing.assert_array_equal(kept, mask & (squares <= left[-1] * (1 + 1e-9)))


def test_vaco_drops_only_tokens_that_move_away():
    batch = far_batch(6)
    mask = np.asarray(batch.mask)
    log_rho = np.asarray(batch.logp_train, np.float64) - batch.logp_infer
    terms = rollout_terms(resolve("grpo+vaco", vaco_bound=0.5), prepared(batch))
    distance = np.where(mask, np.abs(np.exp(log_rho) - 1), 0).sum(1) / np.maximum(mask.sum(1), 1)
    away = np.sign(log_rho) * np.asarray(terms.advantages) > 0
    dropped = (distance > 0.5)[:, None] & away
    expected = np.where(dropped, 0, np.minimum(np.exp(log_rho), 2))
    assert 0 < dropped[mask].sum() < mask.sum()
    np.testing.assert_allclose(np.asarray(terms.correction)[mask], expected[mask], rtol=1e-5)


def test_clip_cov_draws_as_many_as_the_ratio_allows():
    batch = replace(far_batch(7), key=jax.random.key(7))
    plain = np.asarray(coefficients_of("clip_cov", batch, cov_low=99.0, cov_high=100.0))
    count = 3
    overrides = {"cov_low": 0.0, "cov_ratio": float((count + 0.5) / np.asarray(batch.mask).sum())}
    chosen = np.asarray(coefficients_of("clip_cov", batch, **overrides))
    assert ((plain != 0) & (chosen == 0)).sum() == count
    other = coefficients_of("clip_cov", replace(batch, key=jax.random.key(8)), **overrides)
    assert (np.asarray(other) != chosen).any()


def test_clip_cov_without_a_key_is_nan_when_it_must_choose():
    batch = far_batch(7)
    assert np.isnan(value_of("clip_cov", batch, cov_low=0.0))
    assert np.isfinite(value_of("clip_cov", batch, cov_low=0.0, cov_ratio=1.0))
    with pytest.raises(ValueError, match="key must be a random key, got None"):
        token_coefficients("clip_cov", batch, cov_low=0.0)
