"""The key-value cache: what attention reads, already rounded as the engine stores it."""

import functools
from collections.abc import Callable

import jax
import jax.custom_batching
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

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
    """Return caches of zeros, one per layer, for `batch` sequences of up to `length` tokens."""
    keys = jnp.zeros((batch * config.num_key_value_heads, config.head_dim, length), jnp.float32)
    return (Cache(keys, keys.swapaxes(1, 2)),) * config.num_hidden_layers


def extend_cache(
    cache: Cache, keys: Float[Array, "B T H D"], values: Float[Array, "B T H D"], start: Int[Array, ""] | int
) -> Cache:
    """Return the cache with keys and values [B, T, key heads, head_dim] at start to start + T - 1."""
    batch, length, heads, width = keys.shape
    keys = keys.transpose(0, 2, 3, 1).reshape(batch * heads, width, length)
    values = values.transpose(0, 2, 1, 3).reshape(batch * heads, length, width)
    return Cache(_write(cache.keys, keys, start, axis=2), _write(cache.values, values, start, axis=1))


def _write(stored: Array, new: Array, start: Array | int, axis: int) -> Array:
    """Return `stored` with `new` from position `start` of `axis` on."""
    if isinstance(start, int):
        return lax.dynamic_update_slice_in_dim(stored, new, start, axis)
    return _write_traced(axis)(stored, new, start)


@functools.cache
def _write_traced(axis: int) -> Callable[[Array, Array, Array], Array]:
    """Return a function (stored, new, start) that writes at a position known at run time.

    Runs of a batch share the position. `jax.vmap` would make a scatter of the update all the same, which
    checks its bounds and reads what it replaces: five more GPU kernels per token.
    """
    update = functools.partial(lax.dynamic_update_slice_in_dim, axis=axis)
    write = jax.custom_batching.custom_vmap(update)

    @write.def_vmap
    def _(size: int, batched: list[bool], *arguments: Array) -> tuple[Array, bool]:
        *arrays, start = arguments
        if batched[2]:
            return jax.vmap(update, tuple(0 if each else None for each in batched))(*arguments), True
        stored, new = (
            x if each else jnp.broadcast_to(x, (size, *x.shape))
            for x, each in zip(arrays, batched[:2], strict=True)
        )
        return _write_traced(axis + 1)(stored, new, start), True

    return write


def repeat_caches(caches: Caches, batch: int, times: int) -> Caches:
    """Return caches in which each of the `batch` sequences stands `times` times in a row."""

    def repeat(x: Array) -> Array:
        by_sequence = x.reshape(batch, -1, *x.shape[1:])
        return jnp.repeat(by_sequence, times, axis=0).reshape(-1, *x.shape[1:])

    return jax.tree.map(jax.vmap(repeat) if isinstance(caches, Cache) else repeat, caches)
