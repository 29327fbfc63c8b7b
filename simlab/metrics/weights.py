"""Statistics of any weights on tokens: corrections for the mismatch, distortions, post-clip weights.

Every function maps weights [B, T] and a mask of the same shape to a scalar; entries outside it are never
read. All but the `weight_sequence_` ones take [B], too.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from simlab.core.arrays import AnyArray
from simlab.metrics.reductions import as_mask, maximum, mean, minimum, sequence_mean, std

Array = jax.Array


def weight_mean(weights: Float[AnyArray, "*B T"], mask: Shaped[AnyArray, "*B T"]) -> Float[Array, ""]:
    """Return the mean weight.

    Reference: verl rollout_corr_helper rollout_is_mean.
    """
    return mean(weights, as_mask(mask))


def weight_std(weights: Float[AnyArray, "*B T"], mask: Shaped[AnyArray, "*B T"]) -> Float[Array, ""]:
    """Return the standard deviation of the weights, dividing by the number of entries.

    Reference: verl rollout_corr_helper rollout_is_std.
    """
    return std(weights, as_mask(mask))


def weight_max(weights: Float[AnyArray, "*B T"], mask: Shaped[AnyArray, "*B T"]) -> Float[Array, ""]:
    """Return the largest weight.

    Reference: verl rollout_corr_helper rollout_is_max.
    """
    return maximum(weights, as_mask(mask))


def weight_min(weights: Float[AnyArray, "*B T"], mask: Shaped[AnyArray, "*B T"]) -> Float[Array, ""]:
    """Return the smallest weight.

    Reference: verl rollout_corr_helper rollout_is_min.
    """
    return minimum(weights, as_mask(mask))


def effective_sample_size(
    weights: Float[AnyArray, "*B T"], mask: Shaped[AnyArray, "*B T"]
) -> Float[Array, ""]:
    """Return (mean w)^2 / mean(w^2): 1 if all weights agree, 1/n if one of n is nonzero, NaN if all are 0.

    Reference: verl rollout_corr_helper rollout_is_eff_sample_size.
    """
    real = as_mask(mask)
    # Relative to the largest one: the square of a large weight would lose the small ones or overflow.
    scaled = jnp.where(real, weights, 0) / jnp.max(jnp.where(real, jnp.abs(weights), 0))
    return mean(scaled, real) ** 2 / mean(scaled**2, real)


def weight_sequence_mean(
    weights: Float[AnyArray, "*B T"], mask: Shaped[AnyArray, "*B T"]
) -> Float[Array, ""]:
    """Return the mean over each sequence, then over sequences.

    Reference: verl rollout_corr_helper rollout_is_seq_mean.
    """
    return sequence_mean(weights, as_mask(mask))


def _per_sequence(weights: AnyArray, mask: AnyArray) -> tuple[Array, Array]:
    real = as_mask(mask).any(axis=1)
    return jnp.where(real, mean(weights, as_mask(mask), axis=1), 0), real


def weight_sequence_std(weights: Float[AnyArray, "*B T"], mask: Shaped[AnyArray, "*B T"]) -> Float[Array, ""]:
    """Return the standard deviation of the sequences' mean weights, unbiased; NaN for a single sequence.

    Reference: verl rollout_corr_helper rollout_is_seq_std.
    """
    means, real = _per_sequence(weights, mask)
    count = jnp.sum(real, dtype=jnp.float32)
    return std(means, real) * jnp.sqrt(count / (count - 1))


def weight_sequence_max(weights: Float[AnyArray, "*B T"], mask: Shaped[AnyArray, "*B T"]) -> Float[Array, ""]:
    """Return the largest of the sequences' mean weights.

    Reference: verl rollout_corr_helper rollout_is_seq_max.
    """
    return maximum(*_per_sequence(weights, mask))


def weight_sequence_min(weights: Float[AnyArray, "*B T"], mask: Shaped[AnyArray, "*B T"]) -> Float[Array, ""]:
    """Return the smallest of the sequences' mean weights.

    Reference: verl rollout_corr_helper rollout_is_seq_min.
    """
    return minimum(*_per_sequence(weights, mask))


def weight_sequence_max_deviation(
    weights: Float[AnyArray, "*B T"], mask: Shaped[AnyArray, "*B T"]
) -> Float[Array, ""]:
    """Return the largest distance of a sequence's mean weight from one.

    Reference: verl rollout_corr_helper rollout_is_seq_max_deviation.
    """
    means, real = _per_sequence(weights, mask)
    return maximum(jnp.abs(means - 1), real)
