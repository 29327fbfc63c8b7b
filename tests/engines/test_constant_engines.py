"""Engines as constants of a program and engines as data give the same bits.

Operands are arguments. If a program knows them, the compiler may turn quotients into products with the
reciprocal: with traced engines 53 of 128 numbers of a cache in E4M3 differed then, with constant ones none.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.core.constant import hold_constant, release_constants
from simlab.engines import ENGINES, Engine, Site, add_residual, attend, linear, rms_norm, softmax, store_cache
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
QUICK = ("bf16", "fp8-e4m3-truncated-all", "mxfp8", "nvfp4", "h100-fp8")


def _touches_nothing(node: object) -> object:
    return Site.of("fp32") if isinstance(node, Site) and node.format is not None else node


def find(name: str) -> Engine:
    """Return an engine of the catalog, or bf16 with sites that round to float32, which change nothing."""
    if name != "fp32 sites":
        return ENGINES[name]
    return jax.tree.map(_touches_nothing, ENGINES["bf16"], is_leaf=lambda node: isinstance(node, Site))


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


NAMES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in (*ENGINES, "fp32 sites")
]


@pytest.mark.parametrize("name", NAMES)
def test_constant_engine_has_the_bits_of_a_traced_one(name):
    arguments = X, W, QUERIES, KEYS, VALUES
    traced = forward(jax.tree.map(jnp.asarray, find(name)), *arguments)
    constant = forward(hold_constant(find(name)), *arguments)
    for place, expected in traced.items():
        assert_exact(np.asarray(constant[place]), np.asarray(expected))
