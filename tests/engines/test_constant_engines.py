"""Engines as constants of a program and engines as data give the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.core.constant import hold_constant, release_constants
from simlab.engines import ENGINES, attend, linear, rms_norm, softmax, store_cache
from simlab.engines.site import prepare_sites
from tests.tolerances import assert_exact

RNG = np.random.default_rng(0)
# Rows of very different sizes, so that scales and ranges matter.
X = (RNG.standard_normal((4, 48)) * 2.0 ** np.arange(-6, 6, 3)[:, None]).astype(np.float32)
W = RNG.standard_normal((48, 6)).astype(np.float32) / 7
QUERIES, KEYS, VALUES = RNG.standard_normal((3, 4, 32)).astype(np.float32)
MASK = np.tril(np.ones((4, 4), bool))

# One of each kind of scaling and of sum; as slow tests, all.
QUICK = ("bf16", "vllm-bf16", "fp8-e4m3", "mxfp8", "nvfp4", "h100-fp8")


@jax.jit
def forward(engine, x, w):
    engine = prepare_sites(release_constants(engine))
    y = linear(rms_norm(x, jnp.ones(48), engine), w, engine)
    keys, values = (store_cache(each, engine) for each in (jnp.asarray(KEYS), jnp.asarray(VALUES)))
    attended = attend(jnp.asarray(QUERIES), keys, values, jnp.asarray(MASK), engine)
    probs = softmax(linear(x, w, engine.lm_head), engine)
    return y, linear(x, w, engine.experts or engine.reduced), attended, probs


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ENGINES]
)
def test_constant_engine_has_the_bits_of_a_traced_one(name):
    traced = forward(jax.tree.map(jnp.asarray, ENGINES[name]), X, W)
    constant = forward(hold_constant(ENGINES[name]), X, W)
    for one, other in zip(traced, constant, strict=True):
        assert_exact(np.asarray(one), np.asarray(other))
