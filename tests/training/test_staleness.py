"""Staleness: the ring of past parameters, and which log-probabilities are whose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.training.staleness import first_ring, oldest, renewed
from tests.tolerances import assert_exact


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_rollout_has_the_parameters_of_k_steps_ago(staleness):
    def step(carry, number):
        params, ring = carry
        sampled_with = oldest(ring, params, number)
        ring = renewed(ring, params, number)
        return ({"w": params["w"] + 1}, ring), sampled_with["w"]

    first = {"w": jnp.zeros(2)}
    _, seen = jax.jit(lambda: jax.lax.scan(step, (first, first_ring(first, staleness)), jnp.arange(8)))()
    assert_exact(seen[:, 0], np.maximum(np.arange(8) - staleness, 0).astype(np.float32))


def test_a_ring_may_begin_at_any_step():
    first = {"w": jnp.float32(5)}
    ring = first_ring(first, 3)
    for number in range(7, 10):
        assert oldest(ring, {"w": jnp.float32(0)}, jnp.int32(number))["w"] == 5
        ring = renewed(ring, {"w": jnp.float32(number)}, jnp.int32(number))
    assert oldest(ring, first, jnp.int32(10))["w"] == 7
