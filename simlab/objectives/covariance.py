"""Surrogates that single out the tokens with a large covariance of advantage and log-probability.

cov = (A - mean A) (log p - mean log p), the means over the tokens in the loss.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Int

from simlab.core.pytree import Scalar, pytree
from simlab.core.streams import draw_array, stream
from simlab.objectives.batch import Array, PerToken, TokenBatch, TokenMask, clamp, magnitude, masked_mean
from simlab.objectives.divergences import rank_ascending
from simlab.objectives.override_ranges import Fraction, NotNegative, Number
from simlab.objectives.ratios import SignAwareClip, Surrogate

# verl does not clamp here; beyond this the float32 product with a weight could overflow.
WIDE_LIMIT = 60.0


def wide_ratio(batch: TokenBatch) -> PerToken:
    """Return r = exp(logp - logp_train) [B, T], the log clamped to +-60 with zero gradient beyond.

    Deviation: verl has no clamp in these losses and overflows beyond 88.
    """
    return jnp.exp(clamp(batch.logp - batch.logp_train, -WIDE_LIMIT, WIDE_LIMIT))


def covariance(batch: TokenBatch, advantages: PerToken) -> PerToken:
    """Return the covariance term of each token [B, T], without gradient.

    Reference: arXiv 2505.22617; verl core_algos.compute_policy_loss_clip_cov.
    """
    logp = jax.lax.stop_gradient(batch.logp)
    return (advantages - masked_mean(advantages, batch.mask)) * (logp - masked_mean(logp, batch.mask))


def count_of(ratio: Scalar, mask: TokenMask) -> Int[Array, ""]:
    """Return max(1, int(ratio n)) for the n tokens of `mask`, in float64 if `ratio` is a Python number."""
    tokens = jnp.sum(mask)
    if isinstance(ratio, float | int):
        counts = np.maximum(1, np.floor(ratio * np.arange(np.size(mask) + 1)))
        return jnp.asarray(counts.astype(np.int32))[tokens]
    return jnp.maximum(1, jnp.floor(ratio * tokens.astype(jnp.float32)).astype(jnp.int32))


@pytree
class ClipCov(Surrogate):
    """Clip-Cov: random tokens among those with `cov_low` < cov < `cov_high` get no gradient.

    Of the unclipped tokens in that band, max(1, int(cov_ratio n)) are drawn with `batch.key`; the others have
    the sign-aware clip. A key is needed if there are more candidates than draws: without one, a compiled
    function returns NaN, and any other call raises `ValueError`.

    Reference: arXiv 2505.22617; verl core_algos.compute_policy_loss_clip_cov.
    Deviation: the draw is JAX's, not torch's; log r is clamped to +-60.
    """

    cov_ratio: Fraction = 2e-4
    cov_low: Number = 1.0
    cov_high: Number = 5.0
    clip_low: NotNegative = 0.2
    clip_high: NotNegative = 0.2

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        ratio = wide_ratio(batch)
        weights = SignAwareClip(self.clip_low, self.clip_high)(ratio, advantages)
        cov = covariance(batch, advantages)
        clipped = (weights != ratio) & (advantages != 0)
        candidates = batch.mask & ~clipped & (cov > self.cov_low) & (cov < self.cov_high)
        count = count_of(self.cov_ratio, batch.mask)
        if batch.key is None:
            # A dropped token keeps a zero that NaN turns into NaN, also in the gradient.
            return jnp.where(candidates, 0 * weights, weights) * _nan_if(jnp.sum(candidates) > count)
        lots = draw_array(jax.random.uniform, stream(batch.key, "objectives.clip_cov"), batch.mask.shape)
        return jnp.where(candidates & (rank_ascending(lots, candidates) < count), 0, weights)


def _nan_if(undecided: Bool[Array, ""]) -> Array:
    if not isinstance(undecided, Tracer) and undecided:
        raise ValueError("clip_cov has more candidates than draws: key must be a random key, got None.")
    return jnp.where(undecided, jnp.nan, 1)


@pytree
class KlCov(Surrogate):
    """KL-Cov: the unclipped ratio, and a penalty on |log r| of the tokens with the largest cov.

    The max(1, int(kl_cov_ratio n)) largest have the term A r - kl_cov_coefficient |log r|.

    Reference: arXiv 2505.22617; verl core_algos.compute_policy_loss_kl_cov.
    Deviation: verl's docstring has the coefficient 1, its config 0.1, the default here; log r is clamped to
        +-60.
    """

    kl_cov_ratio: Fraction = 2e-4
    kl_cov_coefficient: NotNegative = 0.1

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return u [B, T]."""
        del advantages
        return wide_ratio(batch)

    def penalty(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return the penalty [B, T] of the chosen tokens, zero elsewhere."""
        ranks = rank_ascending(-covariance(batch, advantages), batch.mask)
        chosen = batch.mask & (ranks < count_of(self.kl_cov_ratio, batch.mask))
        return jnp.where(chosen, self.kl_cov_coefficient * magnitude(batch.logp - batch.logp_train), 0)
