"""Batches written out by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from simlab.objectives import Objective, TokenBatch, objective_value, resolve

LOGP_TRAIN = -1.0


def batch_of(log_r, rewards, group_size=1, log_rho=0.0, mask=None, **fields) -> TokenBatch:
    """A batch with given log r [B, T] and log rho (broadcast to it), pi_train = exp(-1) unless given."""
    log_r = np.asarray(log_r, np.float32)
    logp_train = np.broadcast_to(np.float32(fields.pop("logp_train", LOGP_TRAIN)), log_r.shape)
    return TokenBatch(
        logp=jnp.asarray(logp_train + log_r, jnp.float32),
        logp_train=jnp.asarray(logp_train, jnp.float32),
        logp_infer=jnp.asarray(logp_train - np.asarray(log_rho), jnp.float32),
        rewards=jnp.asarray(rewards, jnp.float32),
        mask=jnp.asarray(np.ones(log_r.shape) if mask is None else mask, bool),
        group_size=group_size,
        **fields,
    )


@jax.jit
def _evaluate(objective: Objective, batch: TokenBatch):
    def value(logp):
        return objective_value(objective, replace(batch, logp=logp))

    return jax.value_and_grad(value)(batch.logp)


def value_of(objective, batch, **overrides):
    """`objective_value`, compiled: eager calls would compile every primitive for every new shape."""
    return _evaluate(resolve(objective, **overrides), batch)[0]


def coefficients_of(objective, batch, **overrides):
    """`token_coefficients`, compiled likewise."""
    return _evaluate(resolve(objective, **overrides), batch)[1]


def random_batch(seed, groups=2, group_size=4, tokens=5, mismatch=0.3) -> TokenBatch:
    """Ragged lengths of at least one, binary rewards that differ in every group."""
    rng = np.random.default_rng(seed)
    shape = (groups * group_size, tokens)
    lengths = rng.integers(1, tokens + 1, shape[0])
    return batch_of(
        0.3 * rng.normal(size=shape),
        np.tile(rng.permutation([1, 0] * (group_size // 2)), groups),
        group_size,
        log_rho=mismatch * rng.normal(size=shape),
        mask=np.arange(tokens) < lengths[:, None],
        logp_train=-1.5 - rng.exponential(1.0, shape),
    )
