"""Injected rounding noise: what it changes, and the levels at which nothing changes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import ENGINES, linear
from simlab.engines.noise_levels import NOISE_KINDS, round_sums, truncate_fp8_operands, truncate_operands
from tests.tolerances import assert_exact

rng = np.random.default_rng(0)
X = jnp.asarray(rng.standard_normal((4, 40)), jnp.float32)
W = jnp.asarray(rng.standard_normal((40, 8)) * 0.2, jnp.float32)
BF16_X, BF16_W = (x.astype(jnp.bfloat16).astype(jnp.float32) for x in (X, W))

project = jax.jit(lambda x, w, engine: linear(x, w, engine))
by_bits = {
    name: jax.jit(lambda x, w, bits, inject=inject: linear(x, w, inject(ENGINES["f32"], bits)))
    for name, inject in NOISE_KINDS.items()
}


def error(name, bits):
    exact = np.float64(X) @ np.float64(W)
    return np.sqrt(np.mean((by_bits[name](X, W, jnp.int32(bits)) - exact) ** 2))


@pytest.mark.parametrize("name", NOISE_KINDS)
def test_more_bits_are_less_mismatch(name):
    errors = [error(name, bits) for bits in (3, 5, 7, 9)]
    # Two bits are a factor of four, give or take the luck of 32 sums.
    for coarse, fine in itertools.pairwise(errors):
        assert 2 < coarse / fine < 8


@pytest.mark.parametrize("name", NOISE_KINDS)
def test_a_traced_dose_is_that_of_a_plain_number(name):
    plain = NOISE_KINDS[name](ENGINES["f32"], 4)
    assert_exact(by_bits[name](X, W, jnp.int32(4)), project(X, W, plain))


def test_four_truncated_bits_are_the_flagship_engine():
    made, named = truncate_fp8_operands(ENGINES["fp8-e4m3"], 4), ENGINES["fp8-s4-truncated"]
    assert jax.tree.structure(made) == jax.tree.structure(named)
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(named), strict=True):
        assert_exact(np.asarray(a), np.asarray(b))


def test_the_doses_at_which_nothing_changes():
    bf16, ordered = ENGINES["bf16"], ENGINES["bf16-ordered"]
    assert_exact(project(BF16_X, BF16_W, truncate_operands(bf16, 7)), project(BF16_X, BF16_W, bf16))
    assert_exact(project(X, W, round_sums(ordered, 23)), project(X, W, ordered))
    assert bool(jnp.any(project(BF16_X, BF16_W, truncate_operands(bf16, 6)) != project(BF16_X, BF16_W, bf16)))


def test_sums_are_rounded_everywhere_and_operands_nowhere_else():
    engine = round_sums(ENGINES["bf16"], 5)
    for product in (engine.projection, engine.router, engine.lm_head):
        assert product.accumulator.partial.format.mantissa_bits == 5
    assert engine.attention.score_accumulator == engine.attention.value_accumulator
    assert engine.attention.value_accumulator.partial.format.mantissa_bits == 5
    assert engine.projection.weights is ENGINES["bf16"].projection.weights


@pytest.mark.parametrize(
    ("name", "bits", "words"),
    [
        ("truncated-fp8", 1, "invalid noise level of 1 bits; allowed: 2, 3"),
        ("truncated", 22, "invalid noise level of 22 bits"),
        ("rounded-sums", 22, "allowed: 0.*21, 23"),
    ],
)
def test_bad_doses_are_refused(name, bits, words):
    with pytest.raises(ValueError, match=words):
        NOISE_KINDS[name](ENGINES["f32"], bits)
