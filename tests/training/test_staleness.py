"""Staleness: the past_params of past parameters, and which log-probabilities are whose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.training.staleness import init_past_params, rollout_params, update_past_params
from tests.tolerances import assert_exact


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_rollout_has_the_parameters_of_k_steps_ago(staleness):
    def step(carry, number):
        params, past_params = carry
        sampled_with = rollout_params(past_params, params, number)
        past_params = update_past_params(past_params, params, number)
        return ({"w": params["w"] + 1}, past_params), sampled_with["w"]

    first = {"w": jnp.zeros(2)}
    _, seen = jax.jit(
        lambda: jax.lax.scan(step, (first, init_past_params(first, staleness)), jnp.arange(8))
    )()
    assert_exact(seen[:, 0], np.maximum(np.arange(8) - staleness, 0).astype(np.float32))


def test_a_ring_may_begin_at_any_step():
    first = {"w": jnp.float32(5)}
    past_params = init_past_params(first, 3)
    for number in range(7, 10):
        assert rollout_params(past_params, {"w": jnp.float32(0)}, jnp.int32(number))["w"] == 5
        past_params = update_past_params(past_params, {"w": jnp.float32(number)}, jnp.int32(number))
    assert rollout_params(past_params, first, jnp.int32(10))["w"] == 7
