"""One block of a transformer, decoded token by token and scored at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import (
    EXACT_PAIRS,
    add_residual,
    attend,
    combine_experts,
    find_pair,
    linear,
    log_softmax,
    rms_norm,
    route,
    store_cache,
)
from tests.tolerances import assert_exact

T, S, D, HEAD, E, V = 9, 16, 40, 16, 4, 50


def normal(*shape, seed, scale=1.0):
    return jnp.asarray((np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32))


PARAMS = {
    "norm": 1 + normal(D, seed=0, scale=0.1),
    "qkv": normal(D, 3 * HEAD, seed=1, scale=0.3),
    "o": normal(HEAD, D, seed=2, scale=0.3),
    "router": normal(D, E, seed=3),
    "experts": normal(E, D, D, seed=4, scale=0.2),
    "head": normal(D, V, seed=5, scale=0.3),
}
STREAM = normal(T, D, seed=6)


def finish(x, mixed, engine, params):
    """From the attention output to log-probs, rows of x on their own."""
    residual, read = add_residual(x, linear(mixed, params["o"], engine), engine)
    h = rms_norm(read, params["norm"], engine)
    experts, weights = route(linear(h, params["router"], engine.router), engine, 2)
    outputs = jnp.moveaxis(jax.vmap(lambda w: linear(h, w, engine))(params["experts"]), 0, -2)
    outputs = jnp.take_along_axis(outputs, experts[..., None], axis=-2)
    _, read = add_residual(residual, combine_experts(outputs, weights, engine), engine)
    hidden = rms_norm(read, params["norm"], engine)
    return log_softmax(linear(hidden, params["head"], engine.lm_head), engine)


def score(x, engine, params):
    qkv = linear(rms_norm(x, params["norm"], engine), params["qkv"], engine)
    queries, keys, values = jnp.split(qkv, 3, 1)
    mask = jnp.tril(jnp.ones((T, T), bool))
    mixed = attend(queries, store_cache(keys, engine), store_cache(values, engine), mask, engine)
    return finish(x, mixed, engine, params)


def decode(x, engine, params):
    """One token at a time, with a cache longer than the sequence whose free places hold old numbers."""

    def step(cache, position):
        row = jax.lax.dynamic_slice_in_dim(x, position, 1)
        qkv = linear(rms_norm(row, params["norm"], engine), params["qkv"], engine)
        query, *written = jnp.split(qkv, 3, 1)
        cache = [
            jax.lax.dynamic_update_slice_in_dim(old, store_cache(new, engine), position, 0)
            for old, new in zip(cache, written, strict=True)
        ]
        mask = (jnp.arange(S) <= position)[None]
        return cache, finish(row, attend(query, *cache, mask, engine), engine, params)[0]

    stale = [normal(S, HEAD, seed=seed, scale=100.0) for seed in (7, 8)]
    return jax.lax.scan(step, stale, jnp.arange(T))[1]


FAST = "bf16-exact/bf16-exact"
PAIRS = [name if name == FAST else pytest.param(name, marks=pytest.mark.slow) for name in EXACT_PAIRS]


@pytest.mark.parametrize("name", PAIRS)
def test_decoding_equals_scoring_bit_for_bit_in_exact_pairs(name):
    pair = find_pair(name)
    scored = np.asarray(jax.jit(lambda x, params: score(x, pair.train, params))(STREAM, PARAMS))
    decode_all = jax.vmap(lambda x, params: decode(x, pair.infer, params), (0, None))
    assert_exact(jax.jit(decode_all)(jnp.stack([STREAM[::-1], STREAM]), PARAMS)[1], scored)


def test_attention_against_float64():
    q, k, v = (normal(5, HEAD, seed=seed) for seed in (1, 2, 3))
    mask = jnp.tril(jnp.ones((5, 5), bool))
    scores = np.asarray(q, np.float64) @ np.asarray(k, np.float64).T / np.sqrt(HEAD)
    weights = np.exp(np.where(mask, scores, -np.inf))
    expected = weights / weights.sum(-1, keepdims=True) @ np.asarray(v, np.float64)
    actual = attend(q, k, v, mask, "f32")
    # Scores below 8 with 17 roundings move an exponential by 8 * 17 units of 2^-24, values are below 4; sums
    # of 5 and a division add less than 20.
    np.testing.assert_allclose(actual, expected, rtol=0, atol=4 * 2 * (8 * 17 + 20) * 2.0**-24)
    after = attend(q, k, v, mask, "vllm-bf16")
    # BF16 weights, values and output: 2^-9 each (the scores' operands 2^-9 of scores below 8).
    np.testing.assert_allclose(after, expected, rtol=0, atol=4 * (2 * 8 + 4) * 2.0**-9)


def test_rms_norm_against_float64_and_its_sites():
    x, weight = normal(4, 40, seed=9), normal(40, seed=10)
    x64 = np.asarray(x, np.float64)
    expected = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-6) * np.asarray(weight, np.float64)
    actual = np.asarray(rms_norm(x, weight, "f32"))
    # Squares 1, tree 6, mean 1, epsilon 1, halved by the root, rsqrt 3.2, two products: below 12 units.
    assert (np.abs(actual - expected) <= 12 * 2.0**-24 * np.abs(expected)).all()
    trainer, server = (np.asarray(rms_norm(x, weight, name)) for name in ("bf16", "vllm-bf16"))
    assert (trainer != server).any()  # the server's norm reads the stream before it is rounded


def test_router_breaks_ties_by_index_and_normalizes():
    logits = jnp.asarray([[1.0, 2.0, 2.0, 2.0, 0.0, -1.0]])
    experts, weights = route(logits, "f32", 2)
    assert_exact(experts, np.array([[1, 2]], np.int32))
    assert_exact(weights, np.array([[0.5, 0.5]], np.float32))
    raw = route(logits, "f32", 2, normalize=False)[1]
    assert (np.asarray(raw) < 0.4).all()
    rounded = route(jnp.asarray([[0.3, 0.0, 0.1]]), "bf16", 2)[1]
    assert_exact(rounded, np.asarray(rounded.astype(jnp.bfloat16).astype(jnp.float32)))


def test_combined_experts_are_the_weighted_sum():
    outputs, weights = normal(3, 2, 8, seed=11), jnp.asarray([[0.75, 0.25]] * 3)
    expected = np.asarray(outputs)[:, 0] * np.float32(0.75) + np.asarray(outputs)[:, 1] * np.float32(0.25)
    assert_exact(combine_experts(outputs, weights, "f32"), expected)


def test_fp8_cache_is_rounded_and_saturates():
    stored = store_cache(jnp.asarray([[500.0, 0.3]]), "bf16-fp8kv")
    assert_exact(stored, np.array([[448, 0.3125]], np.float32))
    assert_exact(store_cache(stored, "vllm-bf16"), np.asarray(stored))
