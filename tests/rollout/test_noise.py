"""Noise on logits and weights: its size, what it depends on, and that the digest follows the context."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.core.streams import stream
from simlab.engines import Engine
from simlab.models import TransformerConfig, init_params, logits
from simlab.rollout import SamplingParams, generate
from simlab.rollout.noise import (
    KINDS,
    ON_WEIGHTS,
    InjectedNoise,
    context_digest,
    extend_digest,
    perturb_logits,
    perturb_weights,
)
from tests.tolerances import assert_exact, assert_within_interval, normal_interval

KEYS = [jax.random.key(seed) for seed in (0, 1)]
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 32, (256, 12)), jnp.int32)
DIGEST = context_digest(TOKENS)
LOGITS = jnp.ones((256, 32), jnp.float32)

WEIGHTS = {"matrix": jnp.full((128, 64), 2.0), "norm": jnp.full(64, -1.0)}

add = jax.jit(perturb_logits)


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_noise_is_on_logits_or_on_weights(kind):
    noise = kind and InjectedNoise(0.5, kind)
    assert (perturb_weights(WEIGHTS, noise, KEYS[0]) is WEIGHTS) == (kind not in ON_WEIGHTS)
    assert (perturb_logits(LOGITS, noise, KEYS[0], DIGEST) is LOGITS) == (kind in (None, *ON_WEIGHTS))


@pytest.mark.parametrize("kind", ON_WEIGHTS)
def test_noise_on_weights_is_relative_and_standard_normal(kind):
    noisy = perturb_weights(WEIGHTS, InjectedNoise(0.5, kind), KEYS[0])
    noise = np.concatenate([np.ravel(noisy[name] / WEIGHTS[name] - 1) for name in WEIGHTS]) / 0.5
    n = noise.size
    assert_within_interval(noise.mean(), *normal_interval(n, 0.0, 1.0, 1e-9), alpha=1e-9)
    assert_within_interval((noise**2).mean(), *normal_interval(n, 1.0, 2**0.5, 1e-9), alpha=1e-9)
    assert len(np.unique(noise)) > 0.99 * n


def test_weight_noise_depends_on_rollout_if_fresh_else_on_seed():
    def perturb(kind: str, key: int, seed: int = 0) -> np.ndarray:
        return np.asarray(perturb_weights(WEIGHTS, InjectedNoise(0.5, kind, seed), KEYS[key])["matrix"])

    assert (perturb("fresh_weight", 0) != perturb("fresh_weight", 1)).mean() > 0.99
    assert_exact(perturb("fresh_weight", 0, seed=1), perturb("fresh_weight", 0))
    assert_exact(perturb("fixed_weight", 0), perturb("fixed_weight", 1))
    assert (perturb("fixed_weight", 0, seed=1) != perturb("fixed_weight", 0)).mean() > 0.99


@pytest.mark.parametrize("kind", ["fresh", "fixed"])
def test_the_noise_is_standard_normal_times_the_scale(kind):
    noise = np.asarray(add(LOGITS, InjectedNoise(0.5, kind), KEYS[0], DIGEST) - LOGITS) / 0.5
    n = noise.size
    # The variance of a squared standard normal is 2; both numbers may fail once in 10^9 draws.
    assert_within_interval(noise.mean(), *normal_interval(n, 0.0, 1.0, 1e-9), alpha=1e-9)
    assert_within_interval((noise**2).mean(), *normal_interval(n, 1.0, 2**0.5, 1e-9), alpha=1e-9)
    between = np.mean(noise[1:] * noise[:-1])
    assert_within_interval(between, *normal_interval(n - 32, 0.0, 1.0, 1e-9), alpha=1e-9)


def test_noise_depends_on_draw_when_fresh_else_on_context():
    fresh, fixed = InjectedNoise(0.5), InjectedNoise(0.5, "fixed")
    first, again = (add(LOGITS, fresh, key, DIGEST) for key in KEYS)
    assert bool(jnp.all(first != again))
    first, again = (add(LOGITS, fixed, key, DIGEST) for key in KEYS)
    assert_exact(first, again)
    assert_exact(add(LOGITS[:3], fixed, KEYS[0], DIGEST[:3]), first[:3])
    other = add(LOGITS, InjectedNoise(0.5, "fixed", seed=1), KEYS[0], DIGEST)
    assert bool(jnp.all(other != first))


def test_the_digest_of_a_prompt_grows_with_the_response():
    digest = context_digest(TOKENS[:, :4])
    for t in range(4, TOKENS.shape[1]):
        digest = extend_digest(digest, TOKENS[:, t])
    assert_exact(digest, DIGEST)


def test_contexts_have_their_own_digests():
    seen = np.unique(np.asarray(TOKENS), axis=0)
    digests = context_digest(jnp.asarray(np.concatenate([seen, seen[:, ::-1]])))
    assert len(np.unique(digests)) == 2 * len(seen)


def test_recent_noise_depends_on_the_last_two_tokens_alone():
    noise = InjectedNoise(0.5, "recent")
    digest = context_digest(TOKENS, "recent")
    assert_exact(context_digest(TOKENS[:, -2:], "recent"), digest)
    assert_exact(extend_digest(context_digest(TOKENS[:, :-1], "recent"), TOKENS[:, -1], "recent"), digest)
    pairs = np.asarray(TOKENS)[:, -2:]
    assert len(np.unique(digest)) == len(np.unique(pairs, axis=0)) < len(np.unique(DIGEST))
    first, again = (add(LOGITS, noise, key, digest) for key in KEYS)
    assert_exact(first, again)


def test_scales_and_seeds_are_data():
    both = InjectedNoise(jnp.asarray([0.0, 1.0]), "fixed", jnp.asarray([0, 1]))
    together = jax.vmap(lambda noise: perturb_logits(LOGITS, noise, KEYS[0], DIGEST))(both)
    assert_exact(together[0], LOGITS)
    assert bool(jnp.any(together[1] != LOGITS))


def test_an_unknown_kind_is_refused():
    with pytest.raises(
        ValueError, match="kind must be one of fresh, fixed, recent, fresh_weight, fixed_weight"
    ):
        InjectedNoise(0.1, "static")


@pytest.mark.parametrize("kind", KINDS)
def test_noise_reaches_sampled_and_reported_log_probs(kind):
    config = TransformerConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    params, noise = init_params(jax.random.key(0), config), InjectedNoise(0.5, kind)
    prompts = jax.random.randint(jax.random.key(1), (2, 3), 4, 32)

    @jax.jit
    def sampled(key):
        return generate(
            params,
            config,
            Engine(),
            SamplingParams(noise=noise),
            key,
            prompts,
            lambda tokens: jnp.zeros(tokens.shape[0]),
            group_size=2,
            length=4,
            end=0,
            pad=1,
        )

    found = sampled(KEYS[0])
    weights = perturb_weights(params, noise, stream(KEYS[0], "weight noise"))
    clean = logits(weights, config, found.tokens)[:, 2:-1]
    for t in range(4):
        key = jax.random.fold_in(stream(KEYS[0], "logit noise"), t)
        digest = context_digest(found.tokens[:, : 3 + t], kind)
        expected = jax.nn.log_softmax(perturb_logits(clean[:, t], noise, key, digest))
        expected = jnp.take_along_axis(expected, found.responses[:, t, None], axis=1)[:, 0]
        # Sums of a few hundred float32 terms in another program; the noise is of order one.
        np.testing.assert_allclose(
            found.logp_infer[:, t], jnp.where(found.mask[:, t], expected, 0), atol=1e-4
        )
