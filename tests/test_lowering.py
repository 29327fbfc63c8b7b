"""The core lowers for CPU, CUDA and TPU, whatever machine runs this test."""

import jax
import jax.numpy as jnp
import pytest

from simlab.engines import ENGINES, linear, matmul, softmax
from simlab.formats import quantize
from simlab.metrics import METRICS
from simlab.objectives import TokenBatch, token_coefficients

PLATFORMS = ("cpu", "cuda", "tpu")
X = jax.ShapeDtypeStruct((4, 64), jnp.float32)
W = jax.ShapeDtypeStruct((64, 8), jnp.float32)
TOKENS = jax.ShapeDtypeStruct((4, 6), jnp.float32)
REWARDS = jax.ShapeDtypeStruct((4,), jnp.float32)


def _lowers(function, *shapes):
    exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)(*shapes)
    assert exported.platforms == PLATFORMS


@pytest.mark.parametrize(("fmt", "scaling"), [("bf16", None), ("e4m3fn", "fp8-per-token"), ("e2m1", "nvfp4")])
def test_quantize(fmt, scaling):
    _lowers(lambda x: quantize(x, fmt, scaling=scaling), X)


def test_stochastic_rounding():
    _lowers(lambda x: quantize(x, "bf16", rounding="stochastic", key=jax.random.key(0)), X)


@pytest.mark.parametrize("engine", ["bf16", "vllm-bf16", "fp8-e4m3-exact"])
def test_engines(engine):
    _lowers(lambda x, w: softmax(linear(x, w, ENGINES[engine]), ENGINES[engine]), X, W)


@pytest.mark.parametrize("accumulator", ["float32", "exact"])
def test_matmul(accumulator):
    _lowers(lambda a, b: matmul(a, b, accumulator=accumulator), X, W)


def _batch(logp, logp_train, logp_infer, rewards):
    return TokenBatch(logp, logp_train, logp_infer, rewards, jnp.ones(logp.shape, bool), 4)


@pytest.mark.parametrize("objective", ["dapo+tis", "dfpo_posorth", "gspo+acrl"])
def test_objectives(objective):
    _lowers(lambda *arrays: token_coefficients(objective, _batch(*arrays)), TOKENS, TOKENS, TOKENS, REWARDS)


def test_metrics():
    def all_metrics(*arrays):
        return [metric(_batch(*arrays)) for metric in METRICS.values()]

    _lowers(all_metrics, TOKENS, TOKENS, TOKENS, REWARDS)
