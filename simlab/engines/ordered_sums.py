"""Sums and maxima whose bits depend neither on the batch nor on how far an array is padded."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

LANES = 16


@jax.custom_jvp
def tree_sum(x: Array) -> Array:
    """Sum float32 x [..., n] over its last axis in one fixed order; returns [...].

    Rows of 16 neighbors are added in pairs (1st + 2nd, 3rd + 4th, ...) until one is left, then its halves.
    Every output has the same tree whatever the leading shape, and zeros at the end do not change it, so that
    a longer padded row has the same sum. Relative error on non-negative numbers: at most
    ceil(log2(max(n, 16))) * 2^-24, since that is the depth of the tree. The gradient is that of any sum.
    """
    return _combine_in_pairs(x, jnp.add, 0.0)


@tree_sum.defjvp
def _tree_sum_jvp(primals, tangents):
    return tree_sum(*primals), jnp.sum(tangents[0], axis=-1)


def tree_max(x: Array) -> Array:
    """Return the maximum of float32 x [..., n] over its last axis, [...]; NaN where there is one.

    A maximum is exact in any order. `jnp.max` is not used because XLA passes it to YNNPACK on a CPU where the
    array is large, with the exponential of a softmax: that one differs from XLA's own in the last bit.
    """
    return _combine_in_pairs(x, jnp.maximum, -jnp.inf)


def _combine_in_pairs(x: Array, combine: Callable[[Array, Array], Array], padding: float) -> Array:
    n = x.shape[-1]
    rows = 1
    while rows * LANES < n:
        rows *= 2
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, rows * LANES - n)], constant_values=padding)
    x = x.reshape(*x.shape[:-1], rows, LANES)
    while rows > 1:
        rows //= 2
        x = x.reshape(*x.shape[:-2], rows, 2, LANES)
        x = combine(x[..., 0, :], x[..., 1, :])
    x = x[..., 0, :]
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = combine(x[..., :half], x[..., half:])
    return x[..., 0]
