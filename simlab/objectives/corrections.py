"""Weights that correct for the mismatch, from the IS ratio rho = pi_train / pi_infer at theta_old.

A correction maps `(batch, advantages [B, T])` to detached weights [B, T]. It multiplies a token's term and
touches neither baselines nor denominators (masks that do are in `rejection.py`).
"""

from collections.abc import Callable

import jax.numpy as jnp

from simlab.core.catalog import lookup
from simlab.core.pytree import Scalar, pytree, static
from simlab.objectives.batch import (
    PerSequence,
    PerToken,
    SequenceMask,
    TokenBatch,
    by_group,
    clamp,
    masked_mean,
    masked_sum,
)
from simlab.objectives.divergences import symmetric_binary_kl
from simlab.objectives.override_ranges import Bounds, NotNegative

LogRho = Callable[[TokenBatch], PerToken]

# verl's SAFETY_BOUND: log rho is clamped to +-20 before it is exponentiated.
LOG_RHO_LIMIT = 20.0
# AReaL clamps probabilities to [1e-8, 1 - 1e-8] before the binary KL.
AREAL_FLOOR = 1e-8
# open-instruct clamps log rho to +-10 in VaCO's divergence.
VACO_LOG_LIMIT = 10.0


def token_log_rho(batch: TokenBatch) -> PerToken:
    """Return log rho[i, t] clamped to +-20; [B, T], in nats.

    Reference: hacking Eq. 5, 25; acrl Eq. 2; verl rollout_corr_helper rollout_is token.
    Deviation: acrl Eq. 2 prints pi(theta) / pi(theta_old), the PPO ratio; pi(theta_old) / mu(theta_old) is
        meant.
    """
    return clamp(batch.logp_train - batch.logp_infer, -LOG_RHO_LIMIT, LOG_RHO_LIMIT)


def sequence_log_rho(batch: TokenBatch) -> PerToken:
    """Return the log of the product of rho over a sequence, clamped to +-20, at each of its tokens [B, T].

    Reference: lr Eq. 4; acrl Eq. 3; verl rollout_corr_helper rollout_is sequence.
    """
    return _pool_log_rho(batch, masked_sum)


def geometric_log_rho(batch: TokenBatch) -> PerToken:
    """Return the mean of log rho over a sequence, clamped to +-20, at each of its tokens [B, T].

    Reference: slime tis_level geometric.
    """
    return _pool_log_rho(batch, masked_mean)


def _pool_log_rho(batch: TokenBatch, pool: Callable[..., PerSequence]) -> PerToken:
    pooled = pool(batch.logp_train - batch.logp_infer, batch.mask, axis=1)
    return jnp.broadcast_to(clamp(pooled, -LOG_RHO_LIMIT, LOG_RHO_LIMIT)[:, None], batch.mask.shape)


def as_bounds(bounds: Bounds) -> tuple[Scalar, Scalar]:
    """Return a pair (low, high); a bare C means (0, C)."""
    low, high = bounds if isinstance(bounds, tuple | list) else (0.0, bounds)
    return low, high


@pytree
class Truncated:
    """min(rho, C), or rho clipped into a pair: truncated importance sampling (TIS).

    Reference: lr Eq. 5; acrl Eq. 2; verl rollout_corr_helper rollout_is_threshold; TRL token_truncate,
        sequence_truncate.
    """

    log_rho: LogRho = static(default=token_log_rho)
    correction_clip: Bounds = 2.0

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return the weights [B, T]."""
        del advantages
        low, high = as_bounds(self.correction_clip)
        return clamp(jnp.exp(self.log_rho(batch)), low, high)


@pytree
class Masked:
    """rho where it is at most C, or inside a pair, and zero elsewhere: masked importance sampling (MIS,
    IcePop).

    Reference: lr Eq. 6; acrl Eq. 3; verl rollout_corr_helper rollout_is_threshold lo_hi; TRL token_mask,
        sequence_mask.
    """

    log_rho: LogRho = static(default=token_log_rho)
    correction_clip: Bounds = 2.0

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return the weights [B, T]."""
        del advantages
        low, high = as_bounds(self.correction_clip)
        rho = jnp.exp(self.log_rho(batch))
        return jnp.where((rho >= low) & (rho <= high), rho, 0)


@pytree
class KpopWeights:
    """rho, not truncated, where the symmetric binary KL of the engines is at most `kpop_bound`, else zero.

    Reference: KPop, Ring blog of 2026-05-26; AReaL functional.py metric binary_kl.
    Deviation: log rho is clamped to +-20.
    """

    kpop_bound: NotNegative = 0.1

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return the weights [B, T]."""
        del advantages
        divergence = symmetric_binary_kl(batch.logp_train, batch.logp_infer, AREAL_FLOOR)
        return jnp.where(divergence <= self.kpop_bound, jnp.exp(token_log_rho(batch)), 0)


@pytree
class Vaco:
    """VaCO: min(rho, C), and zero at tokens that push a sequence of large divergence further away.

    The divergence of a sequence is the mean of |rho - 1|. If it exceeds `vaco_bound`, tokens with
    sign(log rho) A > 0 get zero.

    Reference: VaCO arXiv 2603.01365; open-instruct grpo_utils.py rho_mask_tv_divergence.
    Deviation: rho compares the engines at theta_old, as in open-instruct; the paper's divergence has theta.
    """

    vaco_bound: NotNegative = 0.3
    correction_clip: NotNegative = 2.0

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return the weights [B, T]."""
        log_rho = token_log_rho(batch)
        rho = jnp.exp(clamp(log_rho, -VACO_LOG_LIMIT, VACO_LOG_LIMIT))
        divergence = masked_mean(jnp.abs(rho - 1), batch.mask, axis=1)[:, None]
        dropped = (divergence > self.vaco_bound) & (jnp.sign(log_rho) * advantages > 0)
        return jnp.where(dropped, 0, jnp.minimum(jnp.exp(log_rho), self.correction_clip))


def sequence_discrepancy(batch: TokenBatch) -> PerSequence:
    """Return d[i], the mean of |pi_train - pi_infer| over the tokens of a sequence; [B].

    Reference: acrl Eq. 5, 6.
    """
    # A log-probability above zero is the caller's error; capped, it stays finite.
    train, infer = (jnp.exp(jnp.minimum(logp, 0)) for logp in (batch.logp_train, batch.logp_infer))
    return masked_mean(jnp.abs(train - infer), batch.mask, axis=1)


def _sequence_level(d: PerSequence, real: SequenceMask, group_size: int) -> PerSequence:
    del real, group_size
    return d


def _group_level(d: PerSequence, real: SequenceMask, group_size: int) -> PerSequence:
    mean = masked_mean(by_group(d, group_size), by_group(real, group_size), axis=1)
    return jnp.repeat(mean, group_size)


def _batch_level(d: PerSequence, real: SequenceMask, group_size: int) -> PerSequence:
    del group_size
    return jnp.full_like(d, masked_mean(d, real))


# Over what the current discrepancy Y is averaged: d [B], has tokens [B], group size -> Y [B].
ACRL_LEVELS: dict[str, Callable[[PerSequence, SequenceMask, int], PerSequence]] = {
    "sequence": _sequence_level,
    "group": _group_level,
    "batch": _batch_level,
}


@pytree
class Acrl:
    """ACRL: min(rho^alpha, C) with alpha = gamma sign(A) (1 - Y / X).

    X is the reference discrepancy `acrl_reference`; Y is the current one, averaged over `acrl_level`. Where X
    is zero the engines agree and the weight is one.

    Reference: acrl Eq. 5-9.
    Deviation: the text calls Y the sequence's discrepancy, the printed formula averages over the group:
        `group` is the default, `sequence` and `batch` are offered. Without `acrl_reference` X is the mean
        discrepancy of this batch and moves with the run; the paper measures X once, before training.
        Sequences without tokens leave both averages. log rho and alpha log rho are clamped to +-20.
    """

    acrl_gamma: NotNegative = 0.65
    acrl_clip: NotNegative = 3.0
    acrl_reference: NotNegative | None = None
    acrl_level: str = static(default="group")

    def __call__(self, batch: TokenBatch, advantages: PerToken) -> PerToken:
        """Return the weights [B, T]."""
        alpha = jnp.sign(advantages) * self.strength(batch)[:, None]
        exponent = clamp(alpha * token_log_rho(batch), -LOG_RHO_LIMIT, LOG_RHO_LIMIT)
        return jnp.minimum(jnp.exp(exponent), self.acrl_clip)

    def strength(self, batch: TokenBatch) -> PerSequence:
        """Return gamma (1 - Y / X) per sequence [B]: alpha up to the sign of the advantage."""
        d, real = sequence_discrepancy(batch), batch.mask.any(axis=1)
        current = lookup(ACRL_LEVELS, self.acrl_level, kind="acrl_level")(d, real, batch.group_size)
        reference = masked_mean(d, real) if self.acrl_reference is None else jnp.float32(self.acrl_reference)
        usable = reference > 0
        return jnp.where(usable, self.acrl_gamma * (1 - current / jnp.where(usable, reference, 1)), 0)
