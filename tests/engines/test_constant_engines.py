"""The kernels of an engine have the same bits with its numbers as constants and as arguments.

A complete step need not: XLA fuses the two forms of `bf16/vllm-bf16` differently at full size.

Operands are arguments. If a program knows them, the compiler may turn quotients into products with the
reciprocal: with traced engines 53 of 128 numbers of a cache in E4M3 differed then, with constant ones none.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import ENGINES, Site, add_residual, attend, linear, rms_norm, softmax, store_cache
from simlab.engines.constant import ConstantEngine, hold_constant, release_constants
from simlab.engines.site import prepare_sites
from simlab.engines.softmax import log_softmax
from tests.tolerances import assert_exact

RNG = np.random.default_rng(0)
# Rows of very different sizes, so that scales and ranges matter.
X = (RNG.standard_normal((4, 48)) * 2.0 ** np.arange(-6, 6, 3)[:, None]).astype(np.float32)
W = RNG.standard_normal((48, 6)).astype(np.float32) / 7
QUERIES, KEYS, VALUES = RNG.standard_normal((3, 4, 32)).astype(np.float32)
MASK = np.tril(np.ones((4, 4), bool))

# One of each kind of scaling and of sum; as slow tests, all.
QUICK = ("bf16", "fp8-e4m3-truncated-all", "mxfp8", "nvfp4")


@jax.jit
def forward(engine, x, w, queries, keys, values):
    engine = prepare_sites(release_constants(engine))
    stored, total = add_residual(x, x[::-1], engine)
    normed = rms_norm(total, jnp.ones(48) + w[:, 0], engine)
    keys, values = (store_cache(each, engine) for each in (keys, values))
    attended = attend(queries, keys, values, jnp.asarray(MASK), engine)
    logits = linear(normed, w, engine.lm_head)
    return {
        "residual": stored,
        "projection": linear(normed, w, engine),
        "experts": linear(x, w, engine.experts or engine.reduced),
        "attention": attended,
        "logits": logits,
        "probs": softmax(logits, engine),
        "log_probs": log_softmax(logits, engine),
    }


NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ENGINES]


@pytest.mark.parametrize("name", NAMES)
def test_kernels_have_the_same_bits_in_both_forms(name):
    arguments = X, W, QUERIES, KEYS, VALUES
    traced = forward(jax.tree.map(jnp.asarray, ENGINES[name]), *arguments)
    constant = forward(hold_constant(ENGINES[name]), *arguments)
    for site, expected in traced.items():
        assert_exact(np.asarray(constant[site]), np.asarray(expected))


def test_hold_constant_goes_by_the_numbers_of_an_engine():
    bf16 = ENGINES["bf16"]
    held = hold_constant(jax.tree.map(jnp.asarray, ENGINES["fp16"]))
    assert held == hold_constant(ENGINES["fp16"]) != hold_constant(bf16)
    assert isinstance(held, ConstantEngine)
    assert jax.tree.leaves(held) == []
    edited = replace(bf16, residual=Site.of("e5m2"))
    assert hold_constant(edited) is edited
    assert hold_constant(ENGINES["f32"]) is ENGINES["f32"]
