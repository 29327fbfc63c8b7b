"""Lookups by token whose gradient, on a GPU, is a product or a comparison instead of a scatter.

XLA compiles a scatter for a GPU into several kernels. Where indices may repeat it adds with atomics, in an
order that differs from call to call.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from simlab.core.arrays import AnyArray
from simlab.core.backend import is_gpu_backend
from simlab.engines.accumulate import float32_dot

LARGEST_ONE_HOT = 1024
"""Size of a vocabulary up to which the gradient of an embedding may be a product with one-hot tokens."""


def pick_tokens(values: Float[AnyArray, "*B V"], tokens: Int[AnyArray, "*B"]) -> Float[Array, "*B"]:
    """Return the entries of `values` [..., V] at `tokens` [...]."""
    if is_gpu_backend():
        return _pick_by_comparison(values, tokens)
    return jnp.take_along_axis(values, tokens[..., None], axis=-1)[..., 0]


def embed_tokens(embedding: Float[AnyArray, "V D"], tokens: Int[AnyArray, "*B"]) -> Float[Array, "*B D"]:
    """Return the rows of `embedding` [V, D] at `tokens` [...], [..., D].

    On a GPU the gradient of a vocabulary of at most `LARGEST_ONE_HOT` tokens is a product: its order of sums
    differs from that of a CPU, and is the same in every call.
    """
    if is_gpu_backend() and embedding.shape[0] <= LARGEST_ONE_HOT:
        return _embed_by_product(embedding, tokens)
    return embedding[tokens]


@jax.custom_jvp
def _pick_by_comparison(values: Array, tokens: Array) -> Array:
    return jnp.take_along_axis(values, tokens[..., None], axis=-1)[..., 0]


@_pick_by_comparison.defjvp
def _pick_by_comparison_jvp(primals, tangents):
    values, tokens = primals
    is_picked = lax.broadcasted_iota(tokens.dtype, values.shape, values.ndim - 1) == tokens[..., None]
    return _pick_by_comparison(values, tokens), jnp.sum(jnp.where(is_picked, tangents[0], 0.0), axis=-1)


@jax.custom_jvp
def _embed_by_product(embedding: Array, tokens: Array) -> Array:
    return embedding[tokens]


@_embed_by_product.defjvp
def _embed_by_product_jvp(primals, tangents):
    embedding, tokens = primals
    one_hot = (tokens.reshape(-1, 1) == jnp.arange(embedding.shape[0])[None]).astype(jnp.float32)
    tangent = float32_dot(one_hot, tangents[0]).reshape(*tokens.shape, -1)
    return _embed_by_product(embedding, tokens), tangent
