"""Averages and extremes over the tokens or sequences that exist.

One rule for all metrics: an average, extreme or ratio of nothing is NaN (nothing was measured), a count or
a sum of nothing is zero.
"""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Shaped

from simlab.core.arrays import AnyArray
from simlab.objectives import TokenBatch
from simlab.objectives.batch import masked_sum, prepare_batch

Array = jax.Array
Rest = ParamSpec("Rest")


def on_tokens(
    metric: Callable[Concatenate[TokenBatch, Rest], Array],
) -> Callable[Concatenate[TokenBatch, Rest], Array]:
    """Return `metric` of the prepared batch: checked, with a bool mask and zeros at padded positions."""

    @wraps(metric)
    def measure(batch: TokenBatch, *args: Rest.args, **kwargs: Rest.kwargs) -> Array:
        return metric(prepare_batch(batch), *args, **kwargs)

    return measure


def as_mask(mask: Shaped[AnyArray, "..."]) -> Bool[Array, "..."]:
    """Return a mask of any type as bool: nonzero is real."""
    return jnp.asarray(mask).astype(bool)


def mean(
    x: Float[AnyArray, "*B"], mask: Bool[AnyArray, "*B"], axis: int | None = None
) -> Float[Array, "..."]:
    """Return the mean of `x` where `mask`; NaN where nothing is left."""
    count = jnp.sum(mask, axis=axis, dtype=jnp.float32)
    return masked_sum(x, mask, axis) / count


def std(x: Float[AnyArray, "*B"], mask: Bool[AnyArray, "*B"]) -> Float[Array, ""]:
    """Return the standard deviation of `x` where `mask`, dividing by the number of entries."""
    return jnp.sqrt(mean((x - mean(x, mask)) ** 2, mask))


def maximum(x: Float[AnyArray, "*B"], mask: Bool[AnyArray, "*B"]) -> Float[Array, ""]:
    """Return the largest entry of `x` where `mask`; NaN where nothing is left."""
    return jnp.where(mask.any(), jnp.max(jnp.where(mask, x, -jnp.inf)), jnp.nan)


def minimum(x: Float[AnyArray, "*B"], mask: Bool[AnyArray, "*B"]) -> Float[Array, ""]:
    """Return the smallest entry of `x` where `mask`; NaN where nothing is left."""
    return -maximum(-x, mask)


def sequence_mean(x: Float[AnyArray, "*B"], mask: Bool[AnyArray, "*B"]) -> Float[Array, ""]:
    """Return the mean over the tokens of each sequence, then over the sequences that have tokens."""
    real = mask.any(axis=1)
    return mean(jnp.where(real, mean(x, mask, axis=1), 0), real)
