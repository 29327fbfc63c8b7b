"""Divergence of two policies over the vocabulary, position by position."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from simlab.core.arrays import AnyArray

Array = jax.Array


def exact_kl(logps: Float[AnyArray, "*B V"], reference: Float[AnyArray, "*B V"]) -> Float[Array, "*B"]:
    """Return KL(policy, reference) of each position [...] from log-probabilities [..., V].

    Tokens of probability zero under the policy add zero.

    Unlike the estimators k1 and k3 it has no sampling noise in the token.

    Unit: nats.
    """
    terms = jnp.exp(logps) * (logps - reference)
    return jnp.sum(jnp.where(logps > -jnp.inf, terms, 0), axis=-1)
