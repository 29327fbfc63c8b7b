"""GRPO in plain JAX: read this first.

For G responses to one prompt with rewards R_i, response i having T_i tokens,

    A_i  = (R_i - mean_j R_j) / (std_j R_j + 1e-6)
    r_it = pi_theta(y_it) / pi_train(y_it)
    J    = mean_i 1/T_i sum_t min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)

The composed objective `grpo` of the catalog has the same values and gradients up to rounding; the tests
compare them. It differs in three corners: it clamps log r to +-20, gives gradient one to a ratio equal to a
bound, and advantage zero, exactly, to groups with equal rewards.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from simlab.core.pytree import Scalar


def plain_grpo(
    logp: Float[Array, "B T"],
    logp_train: Float[Array, "B T"],
    rewards: Float[Array, " B"],
    mask: Bool[Array, "B T"],
    group_size: int,
    clip_low: Scalar = 0.2,
    clip_high: Scalar = 0.2,
) -> Float[Array, ""]:
    """Compute the GRPO objective of B = N x G responses, to be maximized.

    Args:
        logp: Log-probabilities of the sampled tokens under the current policy, float32 [B, T], in nats.
        logp_train: The same under the old policy, float32 [B, T].
        rewards: One per response, float32 [B]; the G responses to a prompt are contiguous.
        mask: True at real tokens, bool [B, T]; every response has one.
        group_size: G, at least 2.
        clip_low: Distance of the lower clip from 1.
        clip_high: Distance of the upper clip from 1.

    Returns:
        The objective, a float32 scalar.

    Reference: hacking Eq. 2, 3; acrl Eq. 1; DeepSeekMath arXiv 2402.03300.
    """
    groups = rewards.reshape(-1, group_size)
    centered = groups - groups.mean(axis=1, keepdims=True)
    advantages = (centered / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-6)).reshape(-1, 1)
    ratio = jnp.exp(logp - logp_train)
    clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    terms = jnp.minimum(ratio * advantages, clipped * advantages)
    return jnp.mean(jnp.mean(terms, axis=1, where=mask))
