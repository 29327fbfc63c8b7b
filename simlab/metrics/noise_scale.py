"""Gradient noise scale: the batch size at which signal and noise of the gradient are equal."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.core.pytree import Scalar

Array = jax.Array


class GradientNoise(NamedTuple):
    """Estimates of |G|^2 (`signal`), of tr Sigma per unit of batch (`noise`), and `scale`, noise / signal."""

    signal: Float[Array, ""]
    noise: Float[Array, ""]
    scale: Float[Array, ""]


def gradient_noise(
    small_square: Scalar | AnyArray, big_square: Scalar | AnyArray, small: int, big: int
) -> GradientNoise:
    """Estimate the simple noise scale B = tr Sigma / |G|^2 from gradients at two batch sizes.

    `small_square` is the mean of |gradient|^2 over batches of `small` units, `big_square` that of one batch
    of `big` units, the average of the small ones. A unit is what the caller counts: sequences, or groups.
    `signal` and `noise` are each unbiased; their ratio is not, and `signal` may come out negative when a
    batch is mostly noise: average the two over steps before dividing. NaN for `small` = `big`.

    Unit: scale in units of batch; signal and noise in squared gradient.
    Reference: arXiv 1812.06162 Eq. 2.9, App. A.1.
    """
    signal = (big * big_square - small * small_square) / jnp.float32(big - small)
    noise = (small_square - big_square) * big * small / jnp.float32(big - small)
    return GradientNoise(signal, noise, noise / signal)
