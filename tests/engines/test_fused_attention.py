"""Attention in one kernel: against float64, interpreted, alone and among others, and its gradient."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from simlab.engines import ENGINES, PartialSums, Site, Softmax, attend
from simlab.engines.fused_attention import FusedAttention, _exponential, attend_by_kernel, attend_by_loop
from tests.compiling import QUICK
from tests.tolerances import assert_exact

ENGINE = ENGINES["f32-flash"]
BLOCK = ENGINE.attention.fused.block
UNIT = 2.0**-24
# Bits do not depend on how hard the compiler tries.
compile_fast = partial(jax.jit, compiler_options=QUICK)


def draw_operands(queries: int, size: int, depth: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return queries [T, D], keys and values [S, D], and a mask [T, S] that leaves every query a key."""
    rng = np.random.default_rng((queries, size, depth, seed))
    q, k, v = (rng.standard_normal((n, depth)).astype(np.float32) for n in (queries, size, size))
    mask = rng.random((queries, size)) < 0.6
    mask[np.arange(queries), rng.integers(0, size, queries)] = True
    return 2 * q, k, v, mask


def bound_error(q: np.ndarray, k: np.ndarray, v: np.ndarray, block: int) -> float:
    """Return what the roundings of an online softmax can amount to."""
    depth, blocks = q.shape[1], -(-len(k) // block)
    largest = (np.abs(np.float64(q)) @ np.abs(np.float64(k)).T).max() / np.sqrt(depth)
    # A score: D products and sums, the scale and its product. Its distance to the maximum, and an exponential
    # within 4 units. A factor per block: such a distance and exponential, and two products.
    weight = (depth + 3) * largest + 2 * largest + 4 + blocks * (2 * largest + 6)
    # Weights in the numerator and in the total, the two sums, a product and the quotient.
    return 1.01 * UNIT * float(np.abs(v).max()) * (2 * weight + 2 * (block + blocks) + 2)


def attend_in_float64(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return attention by its definition."""
    scores = np.float64(q) @ np.float64(k).T / np.sqrt(q.shape[1])
    weights = np.where(mask, np.exp(scores - scores.max(1, keepdims=True)), 0)
    return weights @ np.float64(v) / weights.sum(1, keepdims=True)


def interpret(q, k, v, mask, block=BLOCK):
    return attend_by_kernel(q, k.T, v, mask, block=block, interpret=True)


# No power of two and no multiple of a block; one of everything; keys and dimensions that fill their blocks.
SHAPES = [(3, 37, 24, 16), (1, 1, 1, 16), (7, 16, 8, 4)]


@pytest.mark.parametrize(("queries", "size", "depth", "block"), SHAPES)
def test_kernel_has_the_bits_of_the_loop(queries, size, depth, block):
    q, k, v, mask = draw_operands(queries, size, depth)
    looped = jax.jit(partial(attend_by_loop, block=block))(q, k.T, v, mask)
    assert_exact(compile_fast(partial(interpret, block=block))(q, k, v, mask), np.asarray(looped))
    expected = attend_in_float64(q, k, v, mask)
    np.testing.assert_allclose(looped, expected, rtol=0, atol=bound_error(q, k, v, block))


@settings(max_examples=5)
@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 33), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_attention_is_within_its_roundings_of_float64(queries, size, depth, block):
    q, k, v, mask = draw_operands(queries, size, depth)
    attention = replace(ENGINE.attention, fused=FusedAttention(block))
    engine = replace(ENGINE, attention=attention)
    actual = compile_fast(partial(attend, engine=engine))(q, k, v, mask)
    np.testing.assert_allclose(
        actual, attend_in_float64(q, k, v, mask), rtol=0, atol=bound_error(q, k, v, block)
    )


@cache
def operands_of_decoding():
    """Return nine causal queries over a cache of more keys, which the last seven keys never reach."""
    q, k, v, _ = draw_operands(9, 2 * BLOCK + 5, 24)
    return q, k, v, np.tri(9, len(k), len(k) - 16, dtype=bool)


@pytest.mark.parametrize(
    "path", [attend_by_loop, partial(attend_by_kernel, interpret=True)], ids=["loop", "kernel"]
)
def test_query_alone_has_the_bits_it_has_among_others(path):
    q, k, v, mask = operands_of_decoding()
    attend = compile_fast(partial(path, block=BLOCK))
    together = np.asarray(attend(q, k.T, v, mask))
    for number in range(len(q)):
        assert_exact(attend(q[number : number + 1], k.T, v, mask[number : number + 1])[0], together[number])
    # With a cache that ends at the last key:
    size = np.flatnonzero(mask.any(0))[-1] + 1
    assert_exact(attend(q, k[:size].T, v[:size], mask[:, :size]), together)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1.0, 1e30, np.inf]))
def test_masked_keys_never_change_a_bit(seed, scale):
    q, k, v, mask = operands_of_decoding()
    rng = np.random.default_rng(seed)
    seen = mask & (rng.random(mask.shape) < 0.5) | (np.arange(mask.shape[1]) == 20)
    unseen = ~seen.any(0)[:, None]
    others = [np.where(unseen, np.float32(scale * rng.standard_normal(x.shape)), x) for x in (k, v)]
    assert_exact(attend(q, *others, seen, ENGINE), np.asarray(attend(q, k, v, seen, ENGINE)))


def test_attention_is_mapped_and_scanned():
    q, k, v, mask = (np.stack([x, x[::-1]]) for x in operands_of_decoding())
    mapped = compile_fast(jax.vmap(partial(attend, engine=ENGINE)))(q, k, v, mask)
    scanned = compile_fast(lambda *runs: lax.map(lambda run: attend(*run, engine=ENGINE), runs))(
        q, k, v, mask
    )
    for run in range(2):
        alone = np.asarray(attend(q[run], k[run], v[run], mask[run], ENGINE))
        assert_exact(mapped[run], alone)
        assert_exact(scanned[run], alone)
    assert_exact(compile_fast(jax.vmap(interpret))(q, k, v, mask), np.asarray(mapped))


def test_exponential_is_within_two_units():
    x = np.float32(np.concatenate([np.linspace(-87, 0, 20_001), -np.logspace(-40, 1, 2_001)]))
    exact = np.exp(np.float64(x))
    assert (np.abs(_exponential(x) - exact) <= 2 * UNIT * exact).all()
    assert_exact(_exponential(np.float32([0, -87.00001, -np.inf, np.nan])), np.float32([1, 0, 0, np.nan]))


def test_sums_have_the_stated_order():
    # Weights are 1 or 0 and nothing is rescaled, so that every float32 operation is one of NumPy.
    rng = np.random.default_rng(0)
    v = np.float32(rng.standard_normal((11, 3)) * 2.0 ** rng.integers(-8, 8, (11, 1)))
    seen = np.arange(11) != 5
    numerator, total = np.zeros(3, np.float32), np.float32(0)
    for start in range(0, 11, 4):
        block = np.zeros((4, 3), np.float32)
        block[: len(v[start : start + 4])] = np.where(seen[:, None], v, 0)[start : start + 4]
        numerator = numerator + ((block[0] + block[2]) + (block[1] + block[3]))
        total = total + np.float32(seen[start : start + 4].sum())
    q = k = np.zeros((11, 3), np.float32)
    engine = replace(ENGINE, attention=replace(ENGINE.attention, fused=FusedAttention(4)))
    assert_exact(attend(q[:1], k, v, seen[None], engine)[0], numerator / total)


def test_gradient_is_that_of_float32_attention():
    q, k, v, mask = operands_of_decoding()
    weights = np.random.default_rng(1).standard_normal(q.shape).astype(np.float32)

    def gradients(engine):
        return compile_fast(jax.grad(lambda *x: jnp.sum(weights * attend(*x, mask, engine)), (0, 1, 2)))(
            q, k, v
        )

    for actual, expected in zip(gradients("f32-flash"), gradients("f32"), strict=True):
        # Two orders of the same sums of up to 37 terms, behind probabilities within 100 units.
        np.testing.assert_allclose(actual, expected, rtol=0, atol=200 * UNIT * float(jnp.abs(expected).max()))


def test_kernel_is_one_call_on_a_gpu_and_none_on_a_cpu():
    arguments = operands_of_decoding()
    attention = jax.jit(partial(attend, engine=ENGINE))
    programs = {
        platform: attention.trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
        for platform in ("cpu", "cuda", "tpu")
    }
    counts = {platform: program.count("custom_call @") for platform, program in programs.items()}
    assert counts == {"cpu": 0, "cuda": 1, "tpu": 0}


def test_fused_attention_names_what_it_cannot_do():
    with pytest.raises(ValueError, match="block must be a power of two, got 12"):
        FusedAttention(12)
    fused = ENGINE.attention
    for field, value in (
        ("normalize", "before"),
        ("softmax", Softmax(exponentials=Site.of("bf16"))),
        ("value_accumulator", PartialSums(Site())),
    ):
        with pytest.raises(ValueError, match="fused attention must have normalize='after'"):
            replace(fused, **{field: value})
    assert replace(fused, cache=Site.of("e4m3fn"), output=Site.of("bf16")).fused == FusedAttention()
