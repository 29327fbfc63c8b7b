"""Asynchronous rollouts: the parameters of some steps ago sample, those of now learn.

Three policies, in verl's words: `rollout_log_probs` (here `logp_infer`) are of the inference engine at
theta_rollout, the parameters `staleness` steps ago; `old_log_probs` (`logp_train`) of the training engine at
theta_old, the parameters now; `log_prob` (`logp`) of the training engine at theta, which the minibatches
move. So rho at theta_old holds both the mismatch of the engines and the age of the sample; rho at
theta_rollout, with both engines at the same parameters, holds the mismatch alone.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int

from simlab.models.parameters import Params


def init_past_params(params: Params, staleness: int) -> Params | None:
    """Return `staleness` copies of `params`, [staleness, ...] per leaf; None for staleness 0."""
    if not staleness:
        return None
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * staleness), params)


def rollout_params(past_params: Params | None, params: Params, step: Int[Array, ""]) -> Params:
    """Return theta_rollout at `step`: the oldest of `past_params`, or `params` without staleness."""
    if past_params is None:
        return params
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, step % len(x), keepdims=False), past_params)


def update_past_params(past_params: Params | None, params: Params, step: Int[Array, ""]) -> Params | None:
    """Replace the oldest of `past_params` with `params`, the parameters before `step`."""
    if past_params is None:
        return None
    return jax.tree.map(
        lambda x, new: lax.dynamic_update_index_in_dim(x, new, step % len(x), axis=0), past_params, params
    )
