"""Writing to the key-value cache at positions known while tracing and at run time, and rotating on a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from simlab.models.kv_cache import Cache, extend_cache
from simlab.models.rotary import _turn_by_product, _turn_halves

RUNS, BATCH, LENGTH, HEADS, WIDTH = 3, 2, 5, 2, 4
SHARED = (0, 0, 0, 0, None)


def extend(stored: Array, values: Array, new_keys: Array, new_values: Array, start: Array | int) -> tuple:
    cache = extend_cache(Cache(stored, values), new_keys, new_values, start)
    return cache.keys, cache.values


def caches_and_updates(count: int) -> tuple[Array, ...]:
    keys = jax.random.normal(jax.random.key(0), (RUNS, BATCH * HEADS, WIDTH, LENGTH))
    new = jax.random.normal(jax.random.key(1), (2, RUNS, BATCH, count, HEADS, WIDTH))
    return keys, keys.swapaxes(2, 3), *new


def expected(given: tuple[Array, ...], starts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    keys, values, new_keys, new_values = (np.array(x) for x in given)
    for run, start in enumerate(starts):
        for token in range(new_keys.shape[2]):
            keys[run, :, :, start + token] = new_keys[run, :, token].reshape(-1, WIDTH)
            values[run, :, start + token] = new_values[run, :, token].reshape(-1, WIDTH)
    return keys, values


@pytest.mark.parametrize(("start", "count"), [(0, LENGTH), (0, 2), (2, 1), (3, 2)])
def test_extend_cache_writes_at_known_and_traced_positions(start, count):
    given = caches_and_updates(count)
    known = jax.vmap(lambda *arrays: extend(*arrays, start))(*given)
    traced = jax.jit(jax.vmap(extend, SHARED))(*given, jnp.int32(start))
    for made in (known, traced):
        jax.tree.map(np.testing.assert_array_equal, made, expected(given, [start] * RUNS))


def test_extend_cache_writes_at_one_position_per_run():
    given, starts = caches_and_updates(1), [4, 0, 2]
    made = jax.vmap(extend)(*given, jnp.array(starts))
    jax.tree.map(np.testing.assert_array_equal, made, expected(given, starts))


def test_extend_cache_needs_no_scatter_when_position_is_shared():
    traced = jax.make_jaxpr(jax.vmap(extend, SHARED))(*caches_and_updates(1), jnp.int32(1))
    assert "scatter" not in str(traced)


def test_turn_is_the_same_on_gpus():
    x = jax.random.normal(jax.random.key(0), (3, 5, 8))
    np.testing.assert_array_equal(_turn_halves(x), _turn_by_product(x))
