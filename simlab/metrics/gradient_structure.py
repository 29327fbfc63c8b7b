"""Distribution of the update over token frequencies, and the jitter of a curve."""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Shaped

from simlab.core.arrays import AnyArray
from simlab.metrics.reductions import as_mask

Array = jax.Array


def energy_by_frequency(
    coefficients: Float[AnyArray, "B T"],
    ids: Int[AnyArray, "B T"],
    mask: Shaped[AnyArray, "B T"],
    vocabulary: int,
    buckets: int = 4,
    score_norms: Float[AnyArray, "B T"] | None = None,
) -> Float[Array, " buckets"]:
    """Return the fraction of the summed per-token gradient norms in each frequency bucket, [`buckets`].

    - `coefficients` [B, T]: from `token_coefficients`; `score_norms` [B, T]: norm of grad log pi, one if
      not given.
    - `ids` [B, T]: int token ids below `vocabulary` (static).

    Token types are ordered by how often they occur in this batch; bucket 0 holds the most frequent ones. A
    type goes where the first of its occurrences falls when all occurrences are cut into `buckets` equal
    parts, so a very frequent type may leave the next bucket empty. NaN if all coefficients are zero.

    Reference: cancel Eq. 24.
    Deviation: the paper does not define its frequency buckets; these are ours.
    """
    real = as_mask(mask)
    norms = jnp.abs(coefficients) if score_norms is None else jnp.abs(coefficients) * score_norms
    norms = jnp.where(real, norms, 0).reshape(-1)
    # Padding gets an id of its own, dropped after counting: its values are not read.
    flat = jnp.where(real, ids, vocabulary).reshape(-1)
    counts = jnp.bincount(flat, length=vocabulary + 1)[:vocabulary]
    order = jnp.argsort(-counts, stable=True)
    before = jnp.cumsum(counts[order]) - counts[order]
    bucket_of_type = jnp.zeros(vocabulary, jnp.int32).at[order].set(_bucket(before, counts.sum(), buckets))
    bucket = bucket_of_type[jnp.minimum(flat, vocabulary - 1)]
    return jax.ops.segment_sum(norms, bucket, num_segments=buckets) / jnp.sum(norms)


def _bucket(position: Array, total: Array, buckets: int) -> Array:
    """Return which of `buckets` equal parts of `total` occurrences a position is in."""
    return jnp.minimum(position * buckets // jnp.maximum(total, 1), buckets - 1).astype(jnp.int32)


def jitter2(curve: Float[AnyArray, " S"]) -> Float[Array, ""]:
    """Return the mean absolute second difference of a metric over steps [S]; NaN for fewer than three.

    Unit: that of the metric.
    Reference: cancel Eq. 20, 21.
    """
    second = jnp.abs(curve[2:] - 2 * curve[1:-1] + curve[:-2])
    return jnp.mean(second) if second.shape[0] else jnp.float32(jnp.nan)
