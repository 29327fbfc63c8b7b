"""A value that is computed once is the same value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import Site
from simlab.engines.materialize_once import materialize_on_cpu, materialize_once
from tests.tolerances import assert_exact

BF16 = Site.of("bf16", overflow="format")
X = np.asarray([0.0, -0.0, 1.5, -3.25, 2.0**-126, -3e38, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.parametrize("materialize", [materialize_once, materialize_on_cpu])
@pytest.mark.parametrize("compiled", [False, True])
def test_no_bit_of_a_normal_number_moves(compiled, materialize):
    run = jax.jit(materialize) if compiled else materialize
    assert_exact(run(jnp.asarray(X), BF16), X)


@pytest.mark.parametrize(("platform", "count"), [("cpu", 1), ("cuda", 0)])
def test_value_is_materialized_on_cpu_alone(platform, count):
    traced = jax.jit(materialize_on_cpu).trace(jnp.asarray(X), BF16)
    assert traced.lower(lowering_platforms=(platform,)).as_text().count("stablehlo.divide") == count


def test_subnormals_become_zeros_of_their_sign():
    tiny = np.asarray([2.0**-127, -(2.0**-149)], np.float32)
    assert_exact(materialize_once(jnp.asarray(tiny), BF16), np.asarray([0.0, -0.0], np.float32))


def test_what_is_not_rounded_is_left_alone():
    x = jnp.asarray(X)
    assert materialize_once(x, Site()) is x


def test_gradient_passes_through():
    weights = np.arange(len(X), dtype=np.float32)
    gradient = jax.grad(lambda x: jnp.sum(materialize_once(x, BF16)[:6] * weights[:6]))(jnp.asarray(X))
    assert_exact(gradient[:6], weights[:6])
