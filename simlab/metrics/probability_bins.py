"""The mismatch at fixed probability: raw std rho falls when entropy falls, although tokens of the same
probability disagree more; these numbers do not mix the two.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Shaped

from simlab.core.arrays import AnyArray
from simlab.metrics.reductions import on_tokens
from simlab.objectives import TokenBatch
from simlab.objectives.corrections import token_log_rho

Array = jax.Array

# Bin k holds EDGES[k] <= pi < EDGES[k + 1], the last one also pi = 1. Fixed, so that runs can be compared.
PROBABILITY_EDGES = (0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 1.0)


def membership(logp: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Bool[Array, "B T K"]:
    """Return whether token [B, T] is real and its probability falls into bin K; bool [B, T, K]."""
    inner = jnp.asarray(PROBABILITY_EDGES[1:-1], jnp.float32)
    which = jnp.searchsorted(inner, jnp.exp(logp), side="right")
    return jax.nn.one_hot(which, len(PROBABILITY_EDGES) - 1, dtype=bool) & mask[..., None]


def binned_mean(values: Float[Array, "B T"], members: Bool[Array, "B T K"]) -> Float[Array, " K"]:
    """Return the mean of `values` [B, T] over the tokens of each bin [K]; NaN for an empty bin."""
    total = jnp.sum(jnp.where(members, values[..., None], 0), axis=(0, 1))
    return total / jnp.sum(members, axis=(0, 1), dtype=jnp.float32)


@on_tokens
def tokens_by_pi_train(batch: TokenBatch) -> Float[Array, " K"]:
    """Return the number of tokens in each bin of pi_train, [K].

    Unit: tokens.
    """
    return jnp.sum(membership(batch.logp_train, batch.mask), axis=(0, 1), dtype=jnp.float32)


@on_tokens
def mean_rho_by_pi_train(batch: TokenBatch) -> Float[Array, " K"]:
    """Return the mean rho in each bin of pi_train, [K]; below one at low probability is survival bias.

    Reference: hacking Fig. 7.
    """
    return 1 + binned_mean(jnp.expm1(token_log_rho(batch)), membership(batch.logp_train, batch.mask))


@on_tokens
def mean_rho_by_pi_infer(batch: TokenBatch) -> Float[Array, " K"]:
    """Return the mean rho in each bin of pi_infer, [K]; here the survival bias has the opposite sign."""
    return 1 + binned_mean(jnp.expm1(token_log_rho(batch)), membership(batch.logp_infer, batch.mask))


@on_tokens
def rms_log_rho_by_pi_train(batch: TokenBatch) -> Float[Array, " K"]:
    """Return the RMS log rho in each bin of pi_train, [K].

    Unit: nats.
    Reference: hacking Fig. 7.
    """
    square = (batch.logp_train - batch.logp_infer) ** 2
    return jnp.sqrt(binned_mean(square, membership(batch.logp_train, batch.mask)))


def controlled_rms_log_rho(
    rms: Float[AnyArray, "... K"],
    tokens: Shaped[AnyArray, "... K"],
    reference_tokens: Shaped[AnyArray, "... K"],
) -> Float[Array, "..."]:
    """Return the RMS log rho that a reference step's histogram of pi_train would give.

    `rms` and `tokens` [..., K] are `rms_log_rho_by_pi_train` and `tokens_by_pi_train` of any steps,
    `reference_tokens` [K] the latter of the reference, say the first step of a run. At the reference it is
    `rms_log_rho`; elsewhere it moves only when tokens of equal probability disagree more or less. A bin
    without tokens now is left out, the others share its weight. NaN when none is left.

    Unit: nats.
    """
    weights = jnp.where(tokens > 0, jnp.broadcast_to(reference_tokens, tokens.shape), 0)
    squares = jnp.where(tokens > 0, rms, 0) ** 2
    return jnp.sqrt(jnp.sum(weights * squares, axis=-1) / jnp.sum(weights, axis=-1))
