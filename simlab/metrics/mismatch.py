"""Mismatch of the two engines at theta_old, from the IS ratio rho = pi_train / pi_infer of sampled tokens.

Every function maps a `TokenBatch` to a scalar. Log rho is clamped to +-20 wherever it is exponentiated, as in
verl; sequences without tokens take no part in averages over sequences.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from simlab.metrics.reductions import maximum, mean, minimum, on_tokens, sequence_mean, std
from simlab.metrics.weights import effective_sample_size
from simlab.objectives import TokenBatch
from simlab.objectives.batch import masked_sum
from simlab.objectives.corrections import LOG_RHO_LIMIT, token_log_rho

Array = jax.Array


def _excess(batch: TokenBatch) -> Array:
    """Return rho - 1 [B, T], accurate where the engines nearly agree."""
    return jnp.expm1(token_log_rho(batch))


def _sequence_log_rho(batch: TokenBatch) -> Array:
    """Return the log of the product of rho over each sequence [B], clamped to +-20."""
    total = masked_sum(batch.logp_train - batch.logp_infer, batch.mask, axis=1)
    return jnp.clip(total, -LOG_RHO_LIMIT, LOG_RHO_LIMIT)


def _distance(batch: TokenBatch) -> Array:
    """Return |pi_train - pi_infer| [B, T]."""
    return jnp.abs(jnp.exp(batch.logp_train) - jnp.exp(batch.logp_infer))


@on_tokens
def std_rho(batch: TokenBatch) -> Float[Array, ""]:
    """Compute the standard deviation of the IS ratio rho over all tokens.

    Reference: hacking Eq. 5, Sec. 2.
    """
    return std(_excess(batch), batch.mask)


@on_tokens
def mean_rho(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean of rho over all tokens.

    Reference: hacking Tab. 2.
    """
    return 1 + mean(_excess(batch), batch.mask)


@on_tokens
def max_rho(batch: TokenBatch) -> Float[Array, ""]:
    """Return the largest rho of the batch.

    Reference: hacking Fig. 9.
    """
    return jnp.exp(maximum(token_log_rho(batch), batch.mask))


@on_tokens
def min_rho(batch: TokenBatch) -> Float[Array, ""]:
    """Return the smallest rho of the batch.

    Reference: hacking Tab. 2.
    """
    return jnp.exp(minimum(token_log_rho(batch), batch.mask))


@on_tokens
def max_rho_sequence(batch: TokenBatch) -> Float[Array, ""]:
    """Return the largest product of rho over a sequence, its log clamped to +-20.

    Reference: verl rollout_corr_helper rollout_is_max at the sequence level.
    """
    return jnp.exp(maximum(_sequence_log_rho(batch), batch.mask.any(axis=1)))


@on_tokens
def min_rho_sequence(batch: TokenBatch) -> Float[Array, ""]:
    """Return the smallest product of rho over a sequence, its log clamped to +-20.

    Reference: verl rollout_corr_helper rollout_is_min at the sequence level.
    """
    return jnp.exp(minimum(_sequence_log_rho(batch), batch.mask.any(axis=1)))


@on_tokens
def rms_log_rho(batch: TokenBatch) -> Float[Array, ""]:
    """Return the RMS log rho over all tokens: like `std_rho`, but not dominated by a few large ratios.

    log rho is not clamped here.

    Unit: nats.
    """
    return jnp.sqrt(mean((batch.logp_train - batch.logp_infer) ** 2, batch.mask))


@on_tokens
def fraction_rho_above(batch: TokenBatch, bound: float = 2.0) -> Float[Array, ""]:
    """Return the fraction of tokens with rho > `bound`.

    Reference: verl rollout_corr_helper rollout_is_ratio_fraction_high.
    """
    return mean(jnp.where(token_log_rho(batch) > jnp.log(jnp.float32(bound)), 1.0, 0.0), batch.mask)


@on_tokens
def fraction_rho_below(batch: TokenBatch, bound: float = 0.5) -> Float[Array, ""]:
    """Return the fraction of tokens with rho < `bound`.

    Reference: verl rollout_corr_helper rollout_is_ratio_fraction_low.
    """
    return mean(jnp.where(token_log_rho(batch) < jnp.log(jnp.float32(bound)), 1.0, 0.0), batch.mask)


@on_tokens
def discrepancy(batch: TokenBatch) -> Float[Array, ""]:
    """Return the discrepancy d: mean of |pi_train - pi_infer| over each sequence, then over sequences.

    Reference: acrl Eq. 5, 6.
    Deviation: averages over the sequences that have tokens, where Eq. 6 averages over questions first; the
        two agree when every group has as many such sequences.
    """
    return sequence_mean(_distance(batch), batch.mask)


@on_tokens
def discrepancy_per_token(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean of |pi_train - pi_infer| over all tokens, so long sequences weigh more.

    Reference: verl debug.metrics rollout_probs_diff_mean.
    """
    return mean(_distance(batch), batch.mask)


@on_tokens
def discrepancy_max(batch: TokenBatch) -> Float[Array, ""]:
    """Return the largest |pi_train - pi_infer|.

    Reference: verl debug.metrics rollout_probs_diff_max.
    """
    return maximum(_distance(batch), batch.mask)


@on_tokens
def discrepancy_std(batch: TokenBatch) -> Float[Array, ""]:
    """Return the unbiased std of |pi_train - pi_infer| over all tokens; NaN for a single token.

    Reference: verl debug.metrics rollout_probs_diff_std.
    """
    count = jnp.sum(batch.mask, dtype=jnp.float32)
    return std(_distance(batch), batch.mask) * jnp.sqrt(count / (count - 1))


@on_tokens
def pcc(batch: TokenBatch) -> Float[Array, ""]:
    """Return the Pearson correlation of pi_train and pi_infer over all tokens; NaN if either is constant.

    Reference: hacking Fig. 3, 9; verl debug.metrics rollout_actor_probs_pearson_corr.
    """

    def standardize(logp: Array) -> Array:
        # Relative to the largest one first: the square of a tiny probability would underflow.
        p = jnp.exp(logp - maximum(logp, batch.mask))
        return (p - mean(p, batch.mask)) / std(p, batch.mask)

    product = standardize(batch.logp_train) * standardize(batch.logp_infer)
    return jnp.clip(mean(product, batch.mask), -1, 1)


@on_tokens
def k1_kl(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean of -log rho: an unbiased estimate of KL(pi_infer, pi_train), sometimes negative.

    Unit: nats.
    Reference: verl rollout_corr_helper kl.
    """
    return mean(batch.logp_infer - batch.logp_train, batch.mask)


@on_tokens
def k3_kl(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean of rho - 1 - log rho: an estimate of KL(pi_infer, pi_train), never negative.

    Unit: nats.
    Reference: verl rollout_corr_helper k3_kl.
    Deviation: log rho is clamped to +-20; verl's overflows beyond 88.
    """
    log_rho = token_log_rho(batch)
    return mean(jnp.maximum(jnp.expm1(log_rho) - log_rho, 0), batch.mask)


@on_tokens
def chi2_token(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean of rho^2 - 1: an estimate of chi^2(pi_train, pi_infer), negative only by chance.

    Reference: verl rollout_corr_helper chi2_token.
    """
    return mean(jnp.expm1(2 * token_log_rho(batch)), batch.mask)


@on_tokens
def chi2_sequence(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean over sequences of (product of rho)^2 - 1, the log of the product clamped to +-20.

    Reference: verl rollout_corr_helper chi2_seq.
    Deviation: sequences without tokens take no part; verl counts a zero for each.
    """
    return mean(jnp.expm1(2 * _sequence_log_rho(batch)), batch.mask.any(axis=1))


@on_tokens
def ess_token(batch: TokenBatch) -> Float[Array, ""]:
    """Return the effective sample size of rho over all tokens, as a fraction in (0, 1].

    Reference: verl rollout_corr_helper rollout_is_eff_sample_size.
    Deviation: of the raw ratios; `weights.effective_sample_size` takes the truncated ones that verl logs.
    """
    return effective_sample_size(jnp.exp(token_log_rho(batch)), batch.mask)


@on_tokens
def ess_sequence(batch: TokenBatch) -> Float[Array, ""]:
    """Return the effective sample size of the sequences' products of rho, as a fraction in (0, 1].

    Reference: Kish 1965 (of any weights); lr Eq. 4.
    """
    return effective_sample_size(jnp.exp(_sequence_log_rho(batch)), batch.mask.any(axis=1))
