"""The key-value cache: what attention reads, already rounded as the engine stores it."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from simlab.models.config import TransformerConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Keys and values of one layer, [B, S, key heads, head_dim] each; positions not yet written are zero."""

    keys: Array
    values: Array


def empty_cache(config: TransformerConfig, batch: int, length: int) -> tuple[Cache, ...]:
    """Return caches of all layers for `batch` sequences of up to `length` tokens."""
    zeros = jnp.zeros((batch, length, config.num_key_value_heads, config.head_dim), jnp.float32)
    return (Cache(zeros, zeros),) * config.num_hidden_layers


def extended(cache: Cache, keys: Array, values: Array, start: Array | int) -> Cache:
    """Write keys and values [B, T, heads, head_dim] at positions start to start + T - 1."""

    def written(old: Array, new: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(old, new, start, axis=1)

    return Cache(written(cache.keys, keys), written(cache.values, values))


def repeated(caches: tuple[Cache, ...], times: int) -> tuple[Cache, ...]:
    """Return caches in which every sequence stands `times` times in a row."""
    return jax.tree.map(lambda x: jnp.repeat(x, times, axis=0), caches)
