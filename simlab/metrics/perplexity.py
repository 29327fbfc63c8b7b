"""Log-perplexities of the two engines, per sequence first.

Every function maps a `TokenBatch` to a scalar; log rho is not clamped. A sequence without tokens has no
perplexity and takes no part; verl counts it with perplexity one.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from simlab.metrics.reductions import maximum, mean, minimum, on_tokens, sequence_mean
from simlab.objectives import TokenBatch
from simlab.objectives.batch import masked_mean, masked_sum

Array = jax.Array


def _log_ppl_difference(batch: TokenBatch) -> Array:
    """Return the per-token log-perplexity of the training engine minus that of the inference engine, [B]."""
    return masked_mean(batch.logp_infer - batch.logp_train, batch.mask, axis=1)


def _over_sequences(per_sequence: Array, batch: TokenBatch) -> Array:
    return mean(per_sequence, batch.mask.any(axis=1))


@on_tokens
def abs_seq_log_ratio(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean over sequences of |sum of logp_train - sum of logp_infer|; grows with the length.

    Unit: nats.
    Reference: lr Eq. 7, 8.
    """
    total = masked_sum(batch.logp_train - batch.logp_infer, batch.mask, axis=1)
    return _over_sequences(jnp.abs(total), batch)


@on_tokens
def log_ppl_abs_diff(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean over sequences of |mean of logp_train - mean of logp_infer|.

    Unit: nats.
    Reference: verl rollout_corr_helper log_ppl_abs_diff.
    """
    return _over_sequences(jnp.abs(_log_ppl_difference(batch)), batch)


@on_tokens
def log_ppl_diff(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean over sequences of the per-token log-perplexity, training minus inference.

    Unit: nats.
    Reference: verl rollout_corr_helper log_ppl_diff.
    """
    return _over_sequences(_log_ppl_difference(batch), batch)


@on_tokens
def log_ppl_diff_max(batch: TokenBatch) -> Float[Array, ""]:
    """Return the largest over sequences of the per-token log-perplexity, training minus inference.

    Unit: nats.
    Reference: verl rollout_corr_helper log_ppl_diff_max.
    """
    return maximum(_log_ppl_difference(batch), batch.mask.any(axis=1))


@on_tokens
def log_ppl_diff_min(batch: TokenBatch) -> Float[Array, ""]:
    """Return the smallest over sequences of the per-token log-perplexity, training minus inference.

    Unit: nats.
    Reference: verl rollout_corr_helper log_ppl_diff_min.
    """
    return minimum(_log_ppl_difference(batch), batch.mask.any(axis=1))


@on_tokens
def ppl_ratio(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean over sequences of training perplexity / inference perplexity.

    Reference: verl rollout_corr_helper ppl_ratio.
    """
    return _over_sequences(jnp.exp(_log_ppl_difference(batch)), batch)


@on_tokens
def training_log_ppl(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean over sequences of the training engine's log-perplexity per token.

    Unit: nats.
    Reference: verl rollout_corr_helper training_log_ppl.
    """
    return sequence_mean(-batch.logp_train, batch.mask)


@on_tokens
def rollout_log_ppl(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean over sequences of the inference engine's log-perplexity per token.

    Unit: nats.
    Reference: verl rollout_corr_helper rollout_log_ppl.
    """
    return sequence_mean(-batch.logp_infer, batch.mask)


@on_tokens
def training_ppl(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean over sequences of the training engine's perplexity.

    Reference: verl rollout_corr_helper training_ppl.
    """
    return _over_sequences(jnp.exp(-masked_mean(batch.logp_train, batch.mask, axis=1)), batch)


@on_tokens
def rollout_ppl(batch: TokenBatch) -> Float[Array, ""]:
    """Return the mean over sequences of the inference engine's perplexity.

    Reference: verl rollout_corr_helper rollout_ppl.
    """
    return _over_sequences(jnp.exp(-masked_mean(batch.logp_infer, batch.mask, axis=1)), batch)
