"""A proximal policy without a forward pass, for rollouts that are older than theta_old."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Shaped

from simlab.core.arrays import AnyArray
from simlab.objectives.batch import TokenBatch


def with_loglinear_proximal(batch: TokenBatch, versions_behind: Shaped[AnyArray, "B _"]) -> TokenBatch:
    """Return `batch` with log q := log mu + alpha (log p - log mu) in place of `logp_train`, p detached.

    alpha = clip((d - 1) / d, 0, 1) for a token sampled d versions before theta. So w = p / mu is split into
    rho = w^alpha and a PPO ratio r of value w^(1 - alpha).

    Args:
        batch: any batch; its `logp_train` is not read.
        versions_behind: weight updates between the token's rollout and theta, at least 0; [B, T] or [B, 1].

    Returns:
        The batch with another `logp_train` [B, T].

    Reference: A-3PO arXiv 2512.06547; AReaL prox_approx loglinear.
    """
    behind = jnp.asarray(versions_behind, jnp.float32)
    alpha = jnp.where(behind > 1, (behind - 1) / jnp.maximum(behind, 1), 0)
    log_w = jax.lax.stop_gradient(batch.logp) - batch.logp_infer
    return replace(batch, logp_train=batch.logp_infer + alpha * log_w)
