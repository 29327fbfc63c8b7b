"""The key-value cache: what attention reads, already rounded as the engine stores it."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from simlab.core.pytree import pytree
from simlab.models.config import TransformerConfig


@pytree
class Cache:
    """Keys [B x key heads, head_dim, S] and values [B x key heads, S, head_dim] of one layer.

    Both are as the products of attention read them, the key heads of one sequence contiguous, so that nothing
    is moved when a token is added. Positions not yet written are zero.
    """

    keys: Float[Array, "BH D S"]
    values: Float[Array, "BH S D"]


Caches = tuple[Cache, ...] | Cache
"""One cache per layer, or those of all layers stacked along a first axis."""


def cache_length(caches: Caches) -> int:
    """Return the number of positions S."""
    first = caches if isinstance(caches, Cache) else caches[0]
    return first.values.shape[-2]


def empty_cache(config: TransformerConfig, batch: int, length: int) -> tuple[Cache, ...]:
    """Return caches of all layers for `batch` sequences of up to `length` tokens."""
    keys = jnp.zeros((batch * config.num_key_value_heads, config.head_dim, length), jnp.float32)
    return (Cache(keys, keys.swapaxes(1, 2)),) * config.num_hidden_layers


def extend_cache(
    cache: Cache, keys: Float[Array, "B T H D"], values: Float[Array, "B T H D"], start: Array | int
) -> Cache:
    """Write keys and values [B, T, key heads, head_dim] at positions start to start + T - 1."""
    batch, length, heads, width = keys.shape
    keys = keys.transpose(0, 2, 3, 1).reshape(batch * heads, width, length)
    values = values.transpose(0, 2, 1, 3).reshape(batch * heads, length, width)
    return Cache(
        lax.dynamic_update_slice_in_dim(cache.keys, keys, start, axis=2),
        lax.dynamic_update_slice_in_dim(cache.values, values, start, axis=1),
    )


def repeat_caches(caches: Caches, batch: int, times: int) -> Caches:
    """Return caches in which each of the `batch` sequences stands `times` times in a row."""

    def repeat(x: Array) -> Array:
        by_sequence = x.reshape(batch, -1, *x.shape[1:])
        return jnp.repeat(by_sequence, times, axis=0).reshape(-1, *x.shape[1:])

    return jax.tree.map(jax.vmap(repeat) if isinstance(caches, Cache) else repeat, caches)
