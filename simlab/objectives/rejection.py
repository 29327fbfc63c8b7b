"""Rejections: tokens or complete sequences that leave the loss and its denominators if the engines disagree.

A rejection maps a batch to the tokens it keeps, bool [B, T].
"""

from collections.abc import Callable
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Float

from simlab.core.pytree import Scalar, pytree, static
from simlab.core.ranges import Range
from simlab.objectives.batch import Array, PerToken, TokenBatch, TokenMask, masked_mean, masked_sum
from simlab.objectives.corrections import AREAL_FLOOR, token_log_rho
from simlab.objectives.divergences import probability, rank_ascending, smallest_with_mean, symmetric_binary_kl
from simlab.objectives.override_ranges import Bounds, NotNegative

Level = Callable[[PerToken, TokenMask], PerToken]


def token(x: PerToken, mask: TokenMask) -> PerToken:
    """Return each token's own value [B, T]."""
    del mask
    return x


def seq_sum(x: PerToken, mask: TokenMask) -> PerToken:
    """Return the sum over the sequence, at each of its tokens [B, T]."""
    return jnp.broadcast_to(masked_sum(x, mask, axis=1)[:, None], mask.shape)


def seq_mean(x: PerToken, mask: TokenMask) -> PerToken:
    """Return the mean over the sequence, at each of its tokens [B, T]."""
    return jnp.broadcast_to(masked_mean(x, mask, axis=1)[:, None], mask.shape)


def seq_max(x: PerToken, mask: TokenMask) -> PerToken:
    """Return the maximum over the sequence, at each of its tokens [B, T]; zero without tokens."""
    highest = jnp.max(jnp.where(mask, x, -jnp.inf), axis=1)
    return jnp.broadcast_to(jnp.where(mask.any(axis=1), highest, 0)[:, None], mask.shape)


def k1(log_rho: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Return -log rho, whose mean under pi_infer is KL(pi_infer, pi_train), in nats.

    Reference: verl rollout_corr_helper token_k1.
    """
    return -log_rho


def k2(log_rho: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Return log^2 rho / 2, never negative; KL(pi_infer, pi_train) to second order, in nats.

    Reference: verl rollout_corr_helper token_k2.
    """
    return 0.5 * log_rho**2


def k3(log_rho: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Return rho - 1 - log rho, never negative; its mean under pi_infer is that of `k1`, in nats.

    Reference: verl rollout_corr_helper token_k3.
    """
    return jnp.exp(log_rho) - 1 - log_rho


@pytree
class RatioBand:
    """Keep what has exp(k1) inside a band; one number C means (1 / C, C).

    With `seq_mean` this is the geometric mask. With `seq_max` a sequence stays if all its tokens are in the
    band.

    Reference: verl rollout_corr_helper token_k1, seq_sum_k1, seq_mean_k1.
    Deviation: as in verl the band holds 1 / rho, not rho, since k1 = -log rho; `seq_max` is ours.
    """

    level: Level = static(default=seq_mean)
    rejection_bounds: Bounds = (0.999, 1.001)

    def __call__(self, batch: TokenBatch) -> TokenMask:
        """Return the kept tokens [B, T]."""
        bounds = self.rejection_bounds
        low, high = bounds if isinstance(bounds, tuple | list) else (1 / bounds, bounds)
        log_ratio = k1(token_log_rho(batch))
        highest, lowest = self.level(log_ratio, batch.mask), -self.level(-log_ratio, batch.mask)
        return (lowest >= jnp.log(jnp.float32(low))) & (highest <= jnp.log(jnp.float32(high)))


@pytree
class DivergenceCap:
    """Keep what has a divergence (`k2` or `k3`) of at most `rejection_bounds`, in nats.

    Reference: verl rollout_corr_helper token_k2, token_k3, seq_sum_k2, seq_sum_k3, seq_mean_k2, seq_mean_k3,
        seq_max_k2, seq_max_k3.
    """

    divergence: Callable[[PerToken], PerToken] = static(default=k3)
    level: Level = static(default=seq_mean)
    rejection_bounds: NotNegative = 0.01

    def __call__(self, batch: TokenBatch) -> TokenMask:
        """Return the kept tokens [B, T]."""
        return self.level(self.divergence(token_log_rho(batch)), batch.mask) <= self.rejection_bounds


@pytree
class Veto:
    """Drop a sequence if one of its tokens has rho below `rejection_bounds`.

    Reference: slime rs_veto_threshold.
    """

    rejection_bounds: NotNegative = 1e-4

    def __call__(self, batch: TokenBatch) -> TokenMask:
        """Return the kept tokens [B, T]."""
        worst = seq_max(-token_log_rho(batch), batch.mask)
        return -worst >= jnp.log(jnp.float32(self.rejection_bounds))


@pytree
class KpopMask:
    """Keep tokens whose symmetric binary KL between the engines is at most `kpop_bound`.

    Reference: KPop, Ring blog of 2026-05-26; verl pull request 6800 binary_kl.
    """

    kpop_bound: NotNegative = 0.1

    def __call__(self, batch: TokenBatch) -> TokenMask:
        """Return the kept tokens [B, T]."""
        return symmetric_binary_kl(batch.logp_train, batch.logp_infer, AREAL_FLOOR) <= self.kpop_bound


@pytree
class SecondMomentMask:
    """Drop the tokens with the largest (log rho)^2 until the mean of the rest is below `m2_threshold`.

    All tokens of the batch count, whatever the sign of the advantage, and at least one stays.

    Reference: M2PO arXiv 2510.01161; AReaL functional.py m2_threshold.
    Deviation: log rho is clamped to +-20.
    """

    m2_threshold: NotNegative = 0.04

    def __call__(self, batch: TokenBatch) -> TokenMask:
        """Return the kept tokens [B, T]."""
        squares = token_log_rho(batch) ** 2
        selected = smallest_with_mean(squares, batch.mask, self.m2_threshold, strict=True)
        return selected | (batch.mask & (rank_ascending(squares, batch.mask) == 0))


@pytree
class ProbabilityDifference:
    """Keep tokens whose pi_train - pi_infer lies within `prob_diff_bounds`.

    With the level `seq_mean` or `seq_sum` it is the mean ("geometric" in ROLL) or sum ("sequence") of the
    differences of a sequence that decides for all its tokens.

    Reference: ROLL train_infer_corrections.py, diff filter.
    Deviation: ROLL also filters by the ratio unless `ratio_enabled` is off, and its worker path keeps the
        token count. Its segments are not modeled.
    """

    prob_diff_bounds: Annotated[tuple[Scalar, Scalar], Range(-1.0, 1.0)] = (-0.2, 0.2)
    level: Level = static(default=token)

    def __call__(self, batch: TokenBatch) -> TokenMask:
        """Return the kept tokens [B, T]."""
        low, high = self.prob_diff_bounds
        difference = probability(batch.logp_train) - probability(batch.logp_infer)
        difference = self.level(difference, batch.mask)
        return (difference >= low) & (difference <= high)


@pytree
class OffPolicySequenceMask:
    """Drop sequences with A < 0 whose mean of logp_train - logp exceeds `opsm_delta`, in nats.

    The mean is over the tokens that no rejection has dropped. The mask depends on theta, so it is applied per
    update, after the advantages, and never changes a baseline.

    Reference: slime use_opsm, opsm_delta.
    Deviation: dropped tokens also leave the denominators, as all rejections here; slime zeroes their terms.
    """

    opsm_delta: NotNegative = 1e-4

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> TokenMask:
        """Return the kept tokens [B, T]."""
        drift = seq_mean(batch.logp_train - batch.logp, batch.mask)
        return ~((advantages < 0) & (drift > self.opsm_delta))
