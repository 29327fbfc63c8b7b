from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import ENGINES, Linear, PartialSums, Site, linear, quantize_operand, store
from simlab.formats import SCALINGS, Scaling, dequantize, quantize, stack
from tests.tolerances import assert_exact, assert_ulp

rng = np.random.default_rng(0)
X = jnp.asarray(rng.standard_normal((10, 96)).astype(np.float32))
W = jnp.asarray((rng.standard_normal((96, 24)) * 0.1).astype(np.float32))


def projection(name, **changes):
    return replace(ENGINES[name].projection, output=Site(), **changes)


def test_float32_is_the_plain_product():
    assert_exact(linear(X, W, "f32"), np.asarray(X @ W))
    assert_exact(linear(X[0], W, "f32"), np.asarray(X[0] @ W))


def test_bf16_rounds_both_sides_and_the_result():
    b = lambda x: x.astype(jnp.bfloat16).astype(jnp.float32)  # noqa: E731
    assert_exact(linear(X, W, "bf16"), np.asarray(b(b(X) @ b(W))))


@pytest.mark.parametrize("name", ["fp8-e4m3", "fp8-e4m3-truncated", "int8-w8a8"])
def test_scales_multiply_the_sum_column_first(name):
    sites = projection(name)
    x, w = quantize_operand(X, sites.activations), quantize_operand(W, sites.weights)
    assert x.scale.shape == (10, 1)
    assert w.scale.shape == (1, 24)
    sums = x.elements @ w.elements
    # NumPy, so that no compiler multiplies the scales with each other first.
    assert_exact(linear(X, W, sites), np.asarray(sums) * np.asarray(w.scale) * np.asarray(x.scale))


@pytest.mark.parametrize(("name", "block"), [("fp8-block128", 128), ("nvfp4", 16)])
def test_block_scales_multiply_the_sum_of_their_block(name, block):
    x = jnp.asarray(rng.standard_normal((4, 300)).astype(np.float32))
    w = jnp.asarray(rng.standard_normal((300, 150)).astype(np.float32))
    sites = projection(name)
    qx, qw = quantize_operand(x, sites.activations), quantize_operand(w, sites.weights)
    expected = np.zeros((4, 150), np.float32)
    for i, start in enumerate(range(0, 300, block)):
        terms = slice(start, start + block)
        sums = np.asarray(qx.elements[:, terms] @ qw.elements[terms])
        columns = np.asarray(qw.scale)[i]
        columns = np.repeat(columns, 128)[:150] if name == "fp8-block128" else columns
        expected += sums * columns[None] * np.asarray(qx.scale)[:, i : i + 1]
    actual = linear(x, w, sites)
    if name == "nvfp4":  # 16 products of two E2M1 numbers are exact in any order
        assert_exact(actual, expected)
    else:  # sums of 128 terms in another order: 128 * 2^-24 of their magnitudes, three blocks
        magnitude = np.abs(dequantize(qx, sites.activations.scaling)) @ np.abs(
            dequantize(qw, sites.weights.scaling)
        )
        assert (np.abs(actual - expected) <= 2 * 131 * 2.0**-24 * magnitude).all()


def test_powers_of_two_scale_the_elements():
    sites = projection("mxfp8")
    x = quantize(X, "e4m3fn", scaling="mxfp8")
    w = quantize(W, "e4m3fn", scaling=sites.weights.scaling)
    assert_exact(linear(X, W, sites), np.asarray(x @ w))


def test_every_block_goes_through_the_accumulator():
    """Partial sums of four products of 33 or 36, worked out by hand."""
    accumulator = PartialSums(Site.of("bf16"), 4, inside="ordered")
    x, w = jnp.full((1, 32), 6.0), jnp.full((32, 1), 6.0)
    w = w.at[::2].set(5.5)
    scaling = Scaling("block", block=16, given=jnp.float32(1))
    sites = Linear(Site.of("bf16", scaling=scaling), Site.of("bf16", scaling=replace(scaling, axis=-2)))
    assert linear(x, w, sites)[0, 0] == 1104
    # BF16: 138, 276, 414, 552, all on its grid; twice.
    assert linear(x, w, replace(sites, accumulator=accumulator))[0, 0] == 1104
    finer = replace(sites, accumulator=PartialSums(Site.of("e4m3fn"), 4, inside="ordered"))
    # E4M3: 138 -> 144, 282 -> 288, 426 -> 416, 554 -> 448 (saturates); twice.
    assert linear(x, w, finer)[0, 0] == 896


@pytest.mark.parametrize("name", ["f32", "bf16", "fp8-e4m3", "fp8-block128", "mxfp8", "nvfp4"])
def test_gradient_is_that_of_the_quantized_operands(name):
    sites = ENGINES[name].projection
    weights = jnp.asarray(rng.standard_normal((10, 24)).astype(np.float32))
    actual = jax.jit(jax.grad(lambda x, w: jnp.sum(weights * linear(x, w, sites)), (0, 1)))(X, W)
    plain = jax.jit(jax.grad(lambda x, w: jnp.sum(weights * (x @ w)), (0, 1)))
    operands = store(X, sites.activations), store(W, sites.weights)
    for got, expected in zip(actual, plain(*operands), strict=True):
        # The scale is multiplied in and divided out again: two roundings, so 2 ulp with a tie on the way.
        assert_ulp(got, np.asarray(expected), 2)


def test_quantized_weights_keep_gradient_when_reused():
    sites = ENGINES["fp8-e4m3"].projection
    w = quantize_operand(W, sites.weights)
    assert_exact(linear(X, w, "fp8-e4m3"), np.asarray(linear(X, W, "fp8-e4m3")))
    x = quantize_operand(X, sites.activations)
    assert_exact(linear(x, w, "fp8-e4m3"), np.asarray(linear(X, W, "fp8-e4m3")))
    through = jax.grad(lambda w: jnp.sum(linear(X, quantize_operand(w, sites.weights), sites)))(W)
    assert_exact(through, np.asarray(jax.grad(lambda w: jnp.sum(linear(X, w, sites)))(W)))


@pytest.mark.parametrize("name", ["bf16", "fp8-e4m3", "fp8-block128", "nvfp4"])
def test_leading_axes(name):
    """Dynamic scales are per row, so that a batch of sequences is the sequences one by one."""
    if name == "nvfp4":  # its upper scale is of the whole tensor
        sites = replace(
            ENGINES[name].projection, activations=Site.of("e2m1", scaling=Scaling("block", block=16))
        )
    else:
        sites = ENGINES[name].projection
    batch = jnp.stack([X, 3 * X])
    together = linear(batch, W, sites)
    assert together.shape == (2, 10, 24)
    assert_exact(together.reshape(20, 24), np.asarray(linear(batch.reshape(20, 96), W, sites)))


def test_doses_are_one_program():
    """E4M3 nearest and truncated, and 4 mantissa bits: one signature, and vmap equals the loop."""
    names = ["fp8-e4m3", "fp8-e4m3-truncated", "fp8-s4-truncated"]
    one = jax.jit(lambda x, w, engine: linear(x, w, engine))
    together = jax.jit(jax.vmap(linear, (None, None, 0)))(X, W, stack([ENGINES[n] for n in names]))
    for name, result in zip(names, together, strict=True):
        assert_exact(one(X, W, ENGINES[name]), np.asarray(result))
    assert one._cache_size() == 1
    error = np.abs(np.asarray(together) - np.asarray(X @ W)).mean((1, 2))
    assert error[0] < error[2] < error[1]


def test_stochastic_sites_need_a_key_and_draw_from_it():
    sites = Linear(Site.of("e4m3fn", "stochastic"), Site.of("e4m3fn", "stochastic"))
    with pytest.raises(ValueError, match="key"):
        linear(X, W, sites)
    a, b, c = (linear(X, W, sites, jax.random.key(seed)) for seed in (0, 0, 1))
    assert_exact(a, np.asarray(b))
    assert (np.asarray(a) != np.asarray(c)).any()


@pytest.mark.parametrize(
    ("activations", "weights", "message"),
    [
        ("per-channel", "none", "varies along the 96 terms"),
        ("none", "per-token", "varies along the 96 terms"),
        ("deepseek-1x128", "nvfp4", "allowed"),
    ],
)
def test_scales_that_cannot_be_applied_after_the_sum_are_refused(activations, weights, message):
    sites = Linear(Site.of("e4m3fn", scaling=activations), Site.of("e4m3fn", scaling=weights))
    with pytest.raises(ValueError, match=message):
        linear(X, W, sites)


def test_blocks_of_two_sizes_are_refused():
    w_scaling = replace(SCALINGS["nvfp4"], axis=-2)
    sites = Linear(Site.of("e4m3fn", scaling=Scaling("block", block=32)), Site.of("e2m1", scaling=w_scaling))
    with pytest.raises(ValueError, match="blocks of 32 and 16 terms; allowed: the same size"):
        linear(X, W, sites)


def test_shapes_that_do_not_match_are_named():
    with pytest.raises(ValueError, match=r"cannot multiply \(10, 96\) by \(24, 96\)"):
        linear(X, W.T, "bf16")
