"""Precision recipes: backward passes, weight-only products, tensor parallelism and calibrated caches."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import (
    ENGINES,
    Linear,
    Site,
    add_residual,
    calibrated_cache,
    combine_experts,
    linear,
    quantize_operand,
    quantize_weights,
    store,
    store_cache,
)
from simlab.engines.length_splits import LengthSplits
from simlab.formats import FORMATS, SCALINGS
from simlab.models.config import TransformerConfig
from simlab.models.parameters import init_params
from simlab.models.transformer import logits
from tests.oracles.rounding_ref import round_ref
from tests.oracles.scaling_ref import quantize_ref
from tests.tolerances import assert_exact

rng = np.random.default_rng(0)
X = jnp.asarray(rng.standard_normal((10, 96)).astype(np.float32))
W = jnp.asarray((rng.standard_normal((96, 24)) * 0.1).astype(np.float32))
G = jnp.asarray(rng.standard_normal((10, 24)).astype(np.float32))


def gradients(sites: Linear, x=X, w=W, g=G):
    return jax.jit(jax.grad(lambda x, w: jnp.sum(g * linear(x, w, sites)), (0, 1)))(x, w)


@jax.jit
def product(a, b):
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def assert_product(actual, a, b):
    """A float32 product in any order: within a rounding per term of the exact one."""
    a, b = np.float64(a), np.float64(b)
    bound = (a.shape[1] + 1) * 2.0**-24 * (np.abs(a) @ np.abs(b))
    assert (np.abs(actual - a @ b) <= bound).all()


def unrounded(name: str) -> Linear:
    return replace(ENGINES[name].projection, output=Site())


def test_backward_passes_share_the_forward_pass_of_their_server():
    expected = linear(X, W, unrounded("fp8-block128"))
    for name in ("dequantized", "high-precision", "quantized"):
        assert_exact(linear(X, W, unrounded(f"fp8-block128-{name}")), np.asarray(expected))
    assert_exact(linear(X, W, unrounded("jet-rl")), np.asarray(expected))


def test_high_precision_gradients_use_unquantized_operands():
    to_x, to_w = gradients(unrounded("fp8-block128-high-precision"))
    assert_product(to_x, G, W.T)
    assert_product(to_w, X.T, G)


@pytest.mark.parametrize("name", ["fp8-block128-quantized", "jet-rl"])
def test_quantized_gradients_requantize_operands(name):
    to_x, to_w = gradients(unrounded(name))
    fmt = FORMATS["e4m3fn"]
    rows, tiles = SCALINGS["deepseek-1x128"], SCALINGS["deepseek-128x128"]

    def multiplied(left, right):
        # One block of at most 128 terms: the sum of its elements, by the scale of the column, then the row.
        _, a, row_scales = quantize_ref(np.asarray(left), fmt, rows)
        _, b, tile_scales = quantize_ref(np.asarray(right), fmt, tiles)
        sums = np.asarray(product(jnp.asarray(a), jnp.asarray(b)))
        return sums * tile_scales[:1] * row_scales[:, :1]

    assert_exact(to_x, multiplied(G, W.T))
    assert_exact(to_w, multiplied(X.T, G))


def test_the_three_backward_passes_differ_by_the_error_of_fp8():
    exact = np.asarray(product(G, W.T))
    errors = {}
    for name in ("high-precision", "dequantized", "quantized"):
        to_x, _ = gradients(unrounded(f"fp8-block128-{name}"))
        errors[name] = float(np.linalg.norm(to_x - exact) / np.linalg.norm(exact))
    # One operand, then two, each rounded by up to 2^-4 and by a third of that on average.
    assert errors["high-precision"] < 1e-6 < errors["dequantized"] < errors["quantized"] < 2**-4


def test_a_backward_pass_names_what_it_cannot_do():
    sites = unrounded("fp8-block128-quantized")
    with pytest.raises(ValueError, match="unknown backward 'bf16'; allowed: dequantized, high_precision"):
        replace(sites, backward="bf16")
    with pytest.raises(ValueError, match="with dequantized weights"):
        replace(sites, dequantized=Site.of("bf16"))
    with pytest.raises(ValueError, match="w from quantize_weights"):
        linear(X, quantize_operand(W, sites.weights), sites)
    assert_exact(linear(X, quantize_weights(W, sites), sites), np.asarray(linear(X, W, sites)))


@pytest.mark.parametrize(
    ("name", "fmt", "block"),
    [("int4-g32", "int4", 32), ("nvfp4-w4a16", "e2m1", 16), ("int4-g128", "int4", 128)],
)
def test_weight_only_products_read_bf16_weights(name, fmt, block):
    sites = unrounded(name)
    scaling = replace(sites.weights.scaling, given=None)
    assert (scaling.block, scaling.axis) == (block, -2)
    quantized, *_ = quantize_ref(np.asarray(W), FORMATS[fmt], scaling)
    bf16 = FORMATS["bf16"]
    w, x = (
        np.float32([round_ref(float(v), bf16, "nearest_even") for v in a.flat]).reshape(a.shape)
        for a in (quantized, np.asarray(X))
    )
    assert_exact(linear(X, W, sites), np.asarray(product(jnp.asarray(x), jnp.asarray(w))))
    to_x, to_w = gradients(sites)
    assert_product(to_x, G, w.T)
    assert_product(to_w, x.T, G)


@pytest.mark.parametrize("size", [128, 32])
@pytest.mark.parametrize("activations", ["int8-per-token", "int4"])
def test_int4_products_scale_and_add_group_by_group(size, activations):
    name = f"int4-g{size}-{'w4a8' if activations == 'int8-per-token' else 'w4a4'}"
    x, w = np.asarray(X), np.asarray(W)
    groups = replace(SCALINGS[f"int4-g{size}"], axis=-2)
    of_x = SCALINGS["int8-per-token" if "w4a8" in name else f"int4-g{size}"]
    _, a, row_scales = quantize_ref(x, FORMATS["int8" if "w4a8" in name else "int4"], of_x)
    _, b, column_scales = quantize_ref(w, FORMATS["int4"], groups)
    total = np.zeros((10, 24), np.float32)
    for start in range(0, 96, size):
        part = slice(start, start + size)
        # Sums of small integers are exact in any order.
        sums = np.float32(np.float64(a[:, part]) @ np.float64(b[part]))
        total = total + sums * column_scales[start] * row_scales[:, start, None]
    assert_exact(linear(X, W, unrounded(name)), total)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_tensor_parallel_products_add_bf16_partial_sums_by_rank(ranks):
    engine = ENGINES[f"vllm-bf16-tp{ranks}"]
    x, w = (np.asarray(store(a, Site.of("bf16"))) for a in (X, W))
    terms = 96 // ranks
    bf16 = np.vectorize(lambda v: round_ref(float(v), FORMATS["bf16"], "nearest_even"), otypes=[np.float32])
    total = np.zeros((10, 24), np.float32)
    for rank in range(ranks):
        part = slice(rank * terms, (rank + 1) * terms)
        total = bf16(total + bf16(np.asarray(product(x[:, part], w[part]))))
    assert_exact(linear(X, W, replace(engine.reduced, output=Site())), total)
    # Column-parallel products do not divide the sum.
    assert engine.projection == ENGINES["vllm-bf16-tp1"].projection


@pytest.mark.parametrize("ranks", [2, 4])
def test_expert_parallel_sums_are_added_by_rank(ranks):
    bf16 = np.vectorize(lambda v: round_ref(float(v), FORMATS["bf16"], "nearest_even"), otypes=[np.float32])
    outputs = bf16(rng.standard_normal((6, 4, 8)))
    weights = np.float32(rng.uniform(0.1, 0.4, (6, 4)))
    owners = rng.integers(0, ranks, (6, 4))
    owners[0] = 0
    expected = np.zeros((6, 8), np.float32)
    for token in range(6):
        for rank in range(ranks):
            part = np.zeros(8, np.float32)
            for choice in range(4):
                if owners[token, choice] == rank:
                    part = part + bf16(outputs[token, choice] * weights[token, choice])
            expected[token] = bf16(expected[token] + bf16(part))
    engine = ENGINES[f"vllm-bf16-ep{ranks}"]
    args = jnp.asarray(outputs), jnp.asarray(weights)
    found = jax.jit(lambda o, w: combine_experts(o, w, engine, ranks=jnp.asarray(owners)))(*args)
    assert_exact(found, expected)
    together = combine_experts(*args, ENGINES["vllm-bf16-tp1"], ranks=jnp.asarray(owners))
    assert (np.asarray(together) != expected).any()


@pytest.mark.parametrize("splits", [1, 2, 8])
def test_ranges_of_keys_follow_the_length_of_each_query(splits):
    weights = np.float32(np.exp2(-rng.integers(0, 8, (21, 21)))) * np.tri(21, dtype=np.float32)
    values = np.asarray(store(jnp.asarray(rng.standard_normal((21, 5)), jnp.float32), Site.of("bf16")))
    expected = np.zeros((21, 5), np.float32)
    for query in range(21):
        size = -(-(query + 1) // splits)
        for start in range(0, query + 1, size):
            part = np.zeros(5, np.float32)
            for key in range(start, min(start + size, query + 1)):
                part = part + weights[query, key] * values[key]
            expected[query] = expected[query] + part
    assert_exact(jax.jit(LengthSplits(splits).dot)(weights, values), expected)
    assert_exact(
        LengthSplits(splits).dot(np.pad(weights, ((0, 0), (0, 9))), np.pad(values, ((0, 9), (0, 0)))),
        expected,
    )


@pytest.mark.slow
def test_a_cache_can_be_fp8_from_a_position_on():
    engine = ENGINES["bf16-fp8kv-from-4"]
    keys = jnp.asarray(rng.standard_normal((2, 6, 3, 16)), jnp.float32)
    at = jnp.arange(3, 9)[None, :, None]
    found = store_cache(keys, engine, positions=at)
    assert_exact(found[:, :1], np.asarray(store(keys[:, :1], Site.of("bf16"))))
    assert_exact(found[:, 1:], np.asarray(store_cache(keys[:, 1:], "bf16-fp8kv")))
    # In a model the first four tokens read what vllm-bf16 does, and the fifth reads itself in FP8.
    gap = np.abs(forward(engine) - forward(ENGINES["vllm-bf16"])).max(axis=(0, 2))
    assert (gap[:4] == 0).all()
    assert (gap[4:] > 0).all()
    with pytest.raises(ValueError, match="cache_from must be a position"):
        replace(engine.attention, cache_from=-1)


@pytest.mark.parametrize("side", ["bf16", "vllm-bf16"])
def test_fp32_head_and_residual_leave_their_sums_unrounded(side):
    bf16 = np.vectorize(lambda v: round_ref(float(v), FORMATS["bf16"], "nearest_even"), otypes=[np.float32])
    x, w = bf16(X), bf16(W)
    head, plain = ENGINES[f"{side}-fp32head"], ENGINES[side]
    logits = np.asarray(linear(X, W, head.lm_head))
    assert_product(logits, x, w)
    assert (logits != bf16(logits)).any()
    assert_exact(linear(X, W, replace(plain.lm_head, accumulator=head.lm_head.accumulator)), bf16(logits))
    assert (head.projection, head.residual) == (plain.projection, plain.residual)
    stream, update = np.asarray(X[:, :24]), np.asarray(G)
    stored, _ = add_residual(jnp.asarray(stream), jnp.asarray(update), ENGINES[f"{side}-fp32residual"])
    assert_exact(stored, stream + update)
    stored, _ = add_residual(jnp.asarray(stream), jnp.asarray(update), plain)
    assert_exact(stored, bf16(stream + update))


SIZES = TransformerConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
MOE = replace(SIZES, num_experts=4)


def forward(engine, config=SIZES):
    tokens = jnp.arange(6)[None] % 5
    return np.asarray(
        jax.jit(lambda p: logits(p, config, tokens, engine))(init_params(jax.random.key(0), config))
    )


@pytest.mark.slow
def test_numbers_of_ranks_disagree_in_a_model():
    found = [forward(f"vllm-bf16-tp{ranks}") for ranks in (1, 2)]
    assert 0 < np.abs(found[0] - found[1]).max() < 2**-4
    apart = [forward(f"vllm-bf16-{name}", replace(MOE, num_experts_per_tok=4)) for name in ("tp1", "ep2")]
    assert 0 < np.abs(apart[0] - apart[1]).max() < 2**-4


@pytest.mark.slow
def test_experts_alone_are_quantized():
    """Without experts the model is BF16; with experts it lies between BF16 and everything quantized."""
    base = ENGINES["vllm-bf16-tp1"]
    base = replace(base, row_parallel=None)
    assert_exact(forward(ENGINES["int4-g32-experts"]), forward(base))
    found = {name: forward(ENGINES[name], MOE) for name in ("int4-g32-experts", "int4-g32")}
    error = {name: np.abs(x - forward(base, MOE)).mean() for name, x in found.items()}
    assert 0 < error["int4-g32-experts"] < error["int4-g32"]


def test_calibrated_caches_do_not_depend_on_what_is_stored():
    keys = np.float32(rng.standard_normal((5, 2, 16)))
    for name, cache in (("bf16-fp8kv-calibrated", "fp8"), ("bf16-nvfp4kv", "nvfp4")):
        engine = calibrated_cache(ENGINES[name], cache, float(np.abs(keys).max()))
        site = engine.attention.cache
        expected, *_ = quantize_ref(keys, FORMATS["e4m3fn" if cache == "fp8" else "e2m1"], site.scaling)
        stored = store_cache(jnp.asarray(keys), engine)
        assert_exact(stored, expected)
        assert_exact(store_cache(jnp.asarray(keys[:1]), engine), np.asarray(stored[:1]))
        # Half a step of E2M1 at its top is a sixth of amax, and E4M3 scales of blocks add 2^-4.
        assert np.abs(stored - keys).max() < 0.25 * np.abs(keys).max()
    with pytest.raises(ValueError, match="unknown calibrated cache 'int8'"):
        calibrated_cache(ENGINES["bf16"], "int8", 1.0)
