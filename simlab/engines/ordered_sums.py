"""Sums whose bits depend neither on the batch nor on zeros at the end, and the maximum of a softmax."""

import jax
import jax.numpy as jnp
from jax import Array, lax

LANES = 16


@jax.custom_jvp
def tree_sum(x: Array) -> Array:
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


def largest_of_row(x: Array) -> Array:
    """Return the maximum of float32 x [..., n] over its last axis, [..., 1]; NaN where there is one.

    It has no gradient. XLA must not recognize the maximum: on a CPU it passes one of a large array to the
    library YNNPACK, together with the exponential of a softmax, whose last bit would then differ.
    """
    x = lax.stop_gradient(x)
    return lax.reduce(x, jnp.float32(-jnp.inf), _larger, (x.ndim - 1,))[..., None]


def _larger(a: Array, b: Array) -> Array:
    return jnp.where((a >= b) | jnp.isnan(a), a, b)
