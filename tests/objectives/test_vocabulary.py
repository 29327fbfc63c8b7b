"""Score centering and the sampler's support against formulas in float64 numpy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import (
    TokenBatch,
    objective_value,
    restrict_to_sampled_support,
    token_coefficients,
    vocabulary_coefficients,
    with_loglinear_proximal,
    with_top_k_report,
)
from simlab.objectives.divergences import most_probable

SHAPE, VOCABULARY = (4, 3), 6


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def vocabulary_batch(seed: int = 0, excluded: int = 0) -> TokenBatch:
    """Draw two policies over six tokens; the sampler cannot draw its last `excluded` tokens."""
    rng = np.random.default_rng(seed)
    policy = log_softmax(rng.normal(size=(*SHAPE, VOCABULARY)))
    sampler = policy + 0.5 * rng.normal(size=policy.shape)
    sampler[..., VOCABULARY - excluded :] = -np.inf
    sampler = log_softmax(sampler)
    tokens = rng.integers(0, VOCABULARY - excluded, SHAPE)

    def at(x):
        return jnp.asarray(np.take_along_axis(x, tokens[..., None], -1)[..., 0], jnp.float32)

    return TokenBatch(
        logp=at(policy),
        logp_train=at(policy),
        logp_infer=at(sampler),
        rewards=jnp.asarray([1, 0, 0.2, 0.9], jnp.float32),
        mask=jnp.asarray([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]]),
        group_size=2,
        tokens=jnp.asarray(tokens),
        logp_vocabulary=jnp.asarray(policy, jnp.float32),
        logp_infer_vocabulary=jnp.asarray(sampler, jnp.float32),
    )


def vocabulary_of(batch: TokenBatch) -> tuple[jax.Array, jax.Array]:
    """Return both vocabulary columns."""
    assert batch.logp_vocabulary is not None
    assert batch.logp_infer_vocabulary is not None
    return batch.logp_vocabulary, batch.logp_infer_vocabulary


def parts(batch):
    """Return p, mu, A / N and the one-hot sampled tokens, in float64."""
    p, mu = (
        np.exp(np.asarray(batch.logp_vocabulary, np.float64)),
        np.exp(np.asarray(batch.logp_infer_vocabulary, np.float64)),
    )
    rewards = np.asarray(batch.rewards, np.float64).reshape(-1, 2)
    mask = np.asarray(batch.mask)
    advantages = (rewards - rewards.mean(1, keepdims=True)).reshape(-1, 1) * mask / mask.sum()
    return p, mu, advantages[..., None], np.asarray(batch.tokens)[..., None] == np.arange(VOCABULARY)


def truncated(p, mu, cap):
    return np.minimum(p / np.where(mu > 0, mu, 1), cap)


@pytest.mark.parametrize("excluded", [0, 2])
def test_exact_centering_is_the_published_coefficient(excluded):
    batch = vocabulary_batch(1, excluded)
    p, mu, a, sampled = parts(batch)
    plain = vocabulary_coefficients("gpg+score_centering", batch, advantage="grpo_no_std")
    np.testing.assert_allclose(plain, a * (sampled - mu), rtol=1e-5, atol=1e-8)
    overrides = {"advantage": "grpo_no_std", "ratio_cap": 1.2, "divergence_bound": 1.0}
    capped = vocabulary_coefficients("ipo+score_centering", batch, **overrides)
    f = truncated(p, mu, 1.2)
    np.testing.assert_allclose(capped, a * (sampled * f - mu * f), rtol=1e-5, atol=1e-8)


def test_exact_centering_of_mask_has_zero_mean():
    batch = vocabulary_batch(2)
    overrides = {"divergence_low": 0.02, "divergence_high": 0.02}
    policy, sampler = vocabulary_of(batch)
    total = 0.0
    for v in range(VOCABULARY):
        at_v = replace(
            batch,
            tokens=jnp.full(SHAPE, v),
            logp=policy[..., v],
            logp_infer=sampler[..., v],
        )
        mu = np.exp(sampler[..., v])[..., None]
        total += mu * np.asarray(vocabulary_coefficients("dppo_tv+score_centering", at_v, **overrides))
    np.testing.assert_allclose(total, 0, atol=1e-7)


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_top_k_centering_is_the_published_coefficient(top_k):
    batch = vocabulary_batch(3)
    p, mu, a, sampled = parts(batch)
    head = mu >= np.sort(mu, axis=-1)[..., -top_k][..., None]
    g = (1 - (mu * head).sum(-1, keepdims=True)) / (1 - (p * head).sum(-1, keepdims=True))
    for name, cap, overrides in (
        ("gpg", None, {}),
        ("ipo", 1.2, {"ratio_cap": 1.2, "divergence_bound": 1.0}),
    ):
        f = np.ones_like(p) if cap is None else truncated(p, mu, cap)
        tail = g if cap is None else g * np.minimum(1 / g, cap)
        expected = a * (sampled * f - np.where(head, mu * f - tail * p, 0))
        actual = vocabulary_coefficients(
            f"{name}+score_centering", batch, advantage="grpo_no_std", top_k=top_k, **overrides
        )
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-7)


def test_example_of_two_tokens_and_a_tail():
    p, mu = np.log([0.4, 0.4, 0.2]), np.log([0.5, 0.3, 0.2])
    column = lambda x: jnp.asarray(np.tile(x, (2, 1, 1)), jnp.float32)  # noqa: E731
    batch = TokenBatch(
        logp=jnp.full((2, 1), p[2], jnp.float32),
        logp_train=jnp.full((2, 1), p[2], jnp.float32),
        logp_infer=jnp.full((2, 1), mu[2], jnp.float32),
        rewards=jnp.asarray([1.0, -1.0]),
        mask=jnp.ones((2, 1)),
        group_size=2,
        tokens=jnp.full((2, 1), 2),
        logp_vocabulary=column(p),
        logp_infer_vocabulary=column(mu),
    )
    found = vocabulary_coefficients("gpg+score_centering", batch, advantage="reward", top_k=2)
    np.testing.assert_allclose(found[0, 0] * 2, [-0.1, 0.1, 1.0], atol=1e-6)


def test_only_sampled_token_has_coefficient_uncentered():
    batch = vocabulary_batch(4)
    found = np.asarray(vocabulary_coefficients("dppo_tv", batch))
    *_, sampled = parts(batch)
    assert (found[~sampled] == 0).all()
    assert np.abs(found).max() > 0
    assert (found[np.asarray(batch.mask) == 0] == 0).all()


def test_padding_of_the_vocabulary_columns_never_matters():
    batch = vocabulary_batch(5)
    expected = vocabulary_coefficients("ipo+score_centering", batch)
    garbage = {
        name: jnp.where(batch.mask[..., None] == 1, getattr(batch, name), jnp.nan)
        for name in ("logp_vocabulary", "logp_infer_vocabulary")
    }
    np.testing.assert_array_equal(
        vocabulary_coefficients("ipo+score_centering", replace(batch, **garbage)), expected
    )


def test_what_cannot_be_centered_is_rejected_by_name():
    batch = vocabulary_batch(6)
    with pytest.raises(ValueError, match=r"surrogate must be .*, got Clipped"):
        vocabulary_coefficients("grpo+score_centering", batch)
    with pytest.raises(ValueError, match="must not be combined"):
        vocabulary_coefficients("gpg+score_centering+tis", batch)
    with pytest.raises(ValueError, match="logp_vocabulary, which is None"):
        objective_value(
            "gpg+score_centering", replace(batch, logp_vocabulary=None, logp_infer_vocabulary=None)
        )
    with pytest.raises(ValueError, match="vocabulary columns must be of one shape"):
        objective_value("gpg", replace(batch, logp_vocabulary=vocabulary_of(batch)[0][:, 1:]))


def test_support_renormalizes_over_what_the_sampler_can_draw():
    batch = vocabulary_batch(7, excluded=3)
    found = restrict_to_sampled_support(batch)
    p = np.exp(np.asarray(batch.logp_vocabulary, np.float64))
    mass = p[..., :3].sum(-1)
    real = np.asarray(batch.mask) != 0
    expected = np.asarray(batch.logp, np.float64) - np.log(mass)
    np.testing.assert_allclose(np.asarray(found.logp)[real], expected[real], rtol=1e-5)
    np.testing.assert_allclose(np.exp(vocabulary_of(found)[0]).sum(-1)[real], 1, rtol=1e-5)
    whole = vocabulary_batch(7)
    same = restrict_to_sampled_support(whole)
    np.testing.assert_allclose(np.asarray(same.logp)[real], np.asarray(whole.logp)[real], atol=1e-6)

    def value(logits):
        logp = jax.nn.log_softmax(logits)
        at = jnp.take_along_axis(logp, jnp.asarray(batch.tokens)[..., None], -1)[..., 0]
        return objective_value(
            "gpg", restrict_to_sampled_support(replace(batch, logp=at, logp_vocabulary=logp))
        )

    gradient = np.asarray(jax.grad(value)(batch.logp_vocabulary))
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient[..., 3:], 0, atol=1e-8)


def top_k_divergences(batch: TokenBatch, top_k: int):
    """Total variation and KL(mu, p) of one token after the other."""
    p, mu, *_ = parts(batch)
    tv, kl = np.zeros(SHAPE), np.zeros(SHAPE)
    for i in np.ndindex(*SHAPE):
        apart = sorted({*np.argsort(-mu[i])[:top_k].tolist(), int(np.asarray(batch.tokens)[i])})
        merged = [np.append(x[i][apart], 1 - x[i][apart].sum()) for x in (p, mu)]
        merged = [np.maximum(x, 1e-12) for x in merged]
        tv[i] = np.abs(merged[0] - merged[1]).sum() / 2
        kl[i] = (merged[1] * np.log(merged[1] / merged[0])).sum()
    return tv, kl


@pytest.mark.parametrize("top_k", [1, 3, VOCABULARY])
def test_top_k_dppo_drops_by_the_divergence_over_k_tokens(top_k):
    batch = vocabulary_batch(8)
    tv, kl = top_k_divergences(batch, top_k)
    for name, divergence in (("dppo_tv", tv), ("dppo_kl", kl)):
        bound = float(np.median(divergence)) * 1.001
        overrides = {"divergence_low": bound, "divergence_high": bound, "divergence_top_k": top_k}
        a = np.repeat([1.0, -1, -1, 1], SHAPE[1]).reshape(SHAPE) / np.sqrt(2)
        rising = np.asarray(batch.logp) > np.asarray(batch.logp_infer)
        keep = (divergence <= bound) | (rising != (a > 0))
        ratio = np.exp(np.float64(batch.logp) - np.float64(batch.logp_infer))
        mask = np.asarray(batch.mask)
        found = token_coefficients(name, batch, **overrides)
        assert 0 < (keep * mask).sum() < mask.sum()
        np.testing.assert_allclose(found, a * ratio * keep * mask / mask.sum(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("top_k", [1, 3])
def test_report_of_k_tokens_gives_column_coefficients(top_k):
    batch = vocabulary_batch(10)
    logp, ids = jax.lax.top_k(vocabulary_of(batch)[1], top_k)
    reported = with_top_k_report(replace(batch, logp_infer_vocabulary=None), ids, logp, VOCABULARY)
    assert np.isinf(vocabulary_of(reported)[1]).any()
    for name, overrides in (
        ("ipo+score_centering", {"top_k": top_k}),
        ("dppo_tv", {"divergence_top_k": top_k, "divergence_low": 0.1, "divergence_high": 0.1}),
        ("dppo_kl", {"divergence_top_k": top_k, "divergence_low": 0.02, "divergence_high": 0.02}),
    ):
        expected = vocabulary_coefficients(name, batch, **overrides)
        assert np.isfinite(expected).all()
        np.testing.assert_allclose(
            vocabulary_coefficients(name, reported, **overrides), expected, rtol=1e-5, atol=1e-8
        )


def test_top_k_dppo_names_what_it_cannot_do():
    batch = vocabulary_batch(8)
    with pytest.raises(ValueError, match="anchor must be 'rollout' with divergence_top_k"):
        token_coefficients("dppo_tv", batch, divergence_top_k=2, anchor="old")
    with pytest.raises(ValueError, match="tokens, which is None"):
        token_coefficients("dppo_kl", replace(batch, tokens=None), divergence_top_k=2)
    with pytest.raises(ValueError, match="surrogate must be"):
        vocabulary_coefficients("dppo_tv+score_centering", batch, divergence_top_k=2)


def test_loglinear_proximal_splits_the_ratio():
    batch = vocabulary_batch(9)
    behind = jnp.asarray([[0.0], [1.0], [2.0], [4.0]])
    found = with_loglinear_proximal(batch, behind)
    alpha = np.array([[0], [0], [1 / 2], [3 / 4]])
    log_w = np.float64(batch.logp) - np.float64(batch.logp_infer)
    np.testing.assert_allclose(found.logp_train - batch.logp_infer, alpha * log_w, atol=1e-6)
    np.testing.assert_allclose(batch.logp - found.logp_train, (1 - alpha) * log_w, atol=1e-6)
    # q follows p in value, not in gradient.
    slope = jax.grad(lambda x: with_loglinear_proximal(replace(batch, logp=x), behind).logp_train.sum())
    np.testing.assert_array_equal(slope(batch.logp), 0)


@pytest.mark.parametrize("top_k", [1, 3.0, VOCABULARY, np.inf])
def test_a_traced_number_of_tokens_selects_as_a_known_one(top_k):
    logp = jnp.asarray([[0.1, 0.3, 0.3, -jnp.inf, 0.2, 0.3], [1.0, 2, 3, 4, 5, 6]])
    traced = jax.jit(most_probable)(logp, jnp.float32(top_k))
    np.testing.assert_array_equal(traced, most_probable(logp, top_k))
    assert (np.asarray(traced).sum(-1) == min(top_k, VOCABULARY)).all()
