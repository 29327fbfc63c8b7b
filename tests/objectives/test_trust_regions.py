"""Trust regions, rejections and corrections of 2026 beyond the formulas of `test_formulas.py`."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import TokenBatch, prepare_batch, resolve, rollout_terms, token_coefficients
from simlab.objectives.rejection import ProbabilityDifference, seq_mean, seq_sum
from tests.objectives.batches import coefficients_of, random_batch, value_of
from tests.tolerances import assert_exact


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


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl", "ipo", "kpop"])
def test_both_kept_and_dropped_tokens_occur(name):
    batch = far_batch(0)
    dropped = np.asarray(coefficients_of(name, batch))[np.asarray(batch.mask)] == 0
    assert 0 < dropped.sum() < dropped.size


def test_luspo_is_gspo_summed_over_tokens():
    batch = random_batch(3)
    gspo = {"aggregation": "seq-mean-token-sum", "clip_low": 2e-3, "clip_high": 2.5e-3}
    assert_exact(coefficients_of("luspo", batch), np.asarray(coefficients_of("gspo", batch, **gspo)))


@pytest.mark.parametrize("level", [seq_mean, seq_sum])
def test_probability_difference_can_decide_for_a_sequence(level):
    batch = prepare_batch(far_batch(4))
    mask = np.asarray(batch.mask)
    gap = np.where(mask, np.exp(np.float64(batch.logp_train)) - np.exp(np.float64(batch.logp_infer)), 0)
    per_row = gap.sum(1) / (mask.sum(1) if level is seq_mean else 1)
    kept = np.asarray(ProbabilityDifference((-0.2, 0.1), level)(batch))
    assert 0 < ((per_row >= -0.2) & (per_row <= 0.1)).sum() < len(mask)
    assert (kept == ((per_row >= -0.2) & (per_row <= 0.1))[:, None]).all()


def test_value_of_rollout_kl_is_the_mean_square_of_the_log_ratio():
    batch = far_batch(1)
    squares = (np.asarray(batch.logp, np.float64) - batch.logp_infer) ** 2
    lost = value_of("ipo", batch) - value_of("ipo+rollout_kl", batch, rollout_kl_coefficient=0.5)
    np.testing.assert_allclose(lost, 0.5 * squares[np.asarray(batch.mask)].mean(), rtol=1e-5)


def test_rollout_kl_is_a_token_mean_of_what_rejections_leave():
    batch = far_batch(2)
    terms = rollout_terms(resolve("grpo+kpop_mask"), prepare_batch(batch))
    kept = np.asarray(terms.mask)
    lost = value_of("grpo+kpop_mask", batch)
    lost = lost - value_of("grpo+kpop_mask+rollout_kl", batch, rollout_kl_coefficient=1.0)
    squares = (np.asarray(batch.logp, np.float64) - batch.logp_infer) ** 2
    np.testing.assert_allclose(lost, squares[kept].mean(), rtol=1e-5)


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
    assert np.isnan(coefficients_of("clip_cov", batch, cov_low=0.0)).any(where=batch.mask)
    every = np.asarray(coefficients_of("clip_cov", batch, cov_low=-99.0, cov_high=99.0))
    assert np.isnan(every).any(where=np.asarray(batch.mask))
    assert np.isfinite(value_of("clip_cov", batch, cov_low=0.0, cov_ratio=1.0))
    with pytest.raises(ValueError, match="key must be a random key, got None"):
        token_coefficients("clip_cov", batch, cov_low=0.0)
