"""Sums whose bits depend neither on the batch nor on zeros at the end, and the maximum of a softmax."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.core.backend import is_gpu_backend
from simlab.engines.accumulate import Accumulator, Float32Sum

LANES = 16


@jax.custom_jvp
def tree_sum(x: Float[AnyArray, "*B N"]) -> Float[Array, "*B"]:
    """Sum float32 x [..., n] over its last axis in one fixed order; returns [...].

    Rows of 16 neighbors are added in pairs (1st + 2nd, 3rd + 4th, ...) until one is left, then its halves.
    Every output has the same tree whatever the leading shape, and zeros at the end do not change it, so that
    a longer padded row has the same sum. Relative error on non-negative numbers: at most
    ceil(log2(max(n, 16))) * 2^-24, since that is the depth of the tree. The gradient is that of any sum.
    """
    n = x.shape[-1]
    rows = 1
    while rows * LANES < n:
        rows *= 2
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, rows * LANES - n)])
    x = x.reshape(*x.shape[:-1], rows, LANES)
    while rows > 1:
        rows //= 2
        x = x.reshape(*x.shape[:-2], rows, 2, LANES)
        x = x[..., 0, :] + x[..., 1, :]
    x = x[..., 0, :]
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


@tree_sum.defjvp
def _tree_sum_jvp(primals, tangents):
    return tree_sum(*primals), jnp.sum(tangents[0], axis=-1)


def is_order_free(products: Accumulator | None) -> bool:
    """Return whether an engine of these `products` may add the terms of a row in any order.

    On a GPU, where a tree is a kernel of its own, it may if its products depend on the shapes anyway.
    """
    return is_gpu_backend() and isinstance(products, Float32Sum)


def sum_of_row(x: Float[AnyArray, "*B N"], products: Accumulator | None) -> Float[Array, "*B"]:
    """Sum float32 x [..., n] over its last axis, as `tree_sum` unless `is_order_free`; returns [...]."""
    return jnp.sum(x, axis=-1) if is_order_free(products) else tree_sum(x)


def largest_of_row(x: Float[AnyArray, "*B N"]) -> Float[Array, "*B 1"]:
    """Return the maximum of float32 x [..., n] over its last axis, [..., 1]; NaN where there is one.

    It has no gradient.
    """
    return lax.platform_dependent(lax.stop_gradient(x), cpu=_largest_as_integer, default=_largest)


def _largest(x: Array) -> Array:
    return x.max(axis=-1, keepdims=True)


def _largest_as_integer(x: Array) -> Array:
    """Compare integers in the order of x, for which XLA does not call the library YNNPACK.

    To that it passes a float32 maximum of a large array together with the exponential of a softmax, whose
    last bit would then differ.
    """
    ordered = _in_order_of_size(lax.bitcast_convert_type(x, jnp.int32))
    ordered = jnp.where(jnp.isnan(x), jnp.iinfo(jnp.int32).max, ordered)
    return lax.bitcast_convert_type(_in_order_of_size(_largest(ordered)), jnp.float32)


def _in_order_of_size(bits: Array) -> Array:
    """Map the bits of float32 to int32 of the same order, and back: negative numbers have theirs reversed."""
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
