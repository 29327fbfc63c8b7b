"""Advantages: from one reward per sequence to the number that multiplies its tokens.

An estimator maps `(batch, survivors [B])` to float32 [B], one advantage per sequence, or to [B, T]. Sequences
that are not survivors enter no baseline and get zero.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from simlab.core.pytree import Scalar
from simlab.objectives.batch import (
    Array,
    PerSequence,
    PerToken,
    SequenceMask,
    TokenBatch,
    TokenMask,
    by_group,
    masked_mean,
    masked_sum,
)
from simlab.objectives.token_baseline import OptimalTokenBaseline

Estimator = Callable[[TokenBatch, SequenceMask], PerSequence | PerToken]

GRPO_EPSILON = 1e-6
WHITEN_EPSILON = 1e-8


def per_group(
    one_group: Callable[[Float[Array, " G"], Bool[Array, " G"]], Float[Array, " G"]],
) -> Estimator:
    """Return the estimator on the batch that maps every group by `f(rewards [G], survivors [G]) -> [G]`."""

    @wraps(one_group)
    def estimator(batch: TokenBatch, survivors: SequenceMask) -> PerSequence:
        rewards = by_group(batch.rewards, batch.group_size)
        advantages = jax.vmap(one_group)(rewards, by_group(survivors, batch.group_size))
        return jnp.where(survivors, advantages.reshape(-1), 0)

    return estimator


def differ(rewards: Float[Array, " G"], survivors: Bool[Array, " G"]) -> Bool[Array, ""]:
    """Return whether the survivors' rewards are not all equal, exactly: a rounded mean would not show it."""
    highest = jnp.max(jnp.where(survivors, rewards, -jnp.inf))
    lowest = jnp.min(jnp.where(survivors, rewards, jnp.inf))
    return highest > lowest


def reward(batch: TokenBatch, survivors: SequenceMask) -> PerSequence:
    """Return the reward itself, without a baseline [B].

    Reference: lr Eq. 2-4.
    """
    return jnp.where(survivors, batch.rewards, 0)


@per_group
def grpo(rewards: Float[Array, " G"], survivors: Bool[Array, " G"]) -> Float[Array, " G"]:
    """Return (R_i - mean R) / (std R + 1e-6) over the survivors of a group [G], std unbiased (GRPO).

    Reference: hacking Eq. 3; acrl Eq. 1; cancel Eq. 43; DeepSeekMath arXiv 2402.03300; verl
        core_algos.compute_grpo_outcome_advantage.
    Deviation: the papers print neither the epsilon nor which standard deviation: both are verl's. Exactly
        zero when all survivors have the same reward or only one is left; verl gives a lone sample its reward.
    """
    count = jnp.sum(survivors, dtype=jnp.float32)
    centered = rewards - masked_mean(rewards, survivors)
    variance = masked_sum(centered**2, survivors) / jnp.maximum(count - 1, 1)
    return jnp.where(differ(rewards, survivors), centered / (jnp.sqrt(variance) + GRPO_EPSILON), 0)


@per_group
def grpo_no_std(rewards: Float[Array, " G"], survivors: Bool[Array, " G"]) -> Float[Array, " G"]:
    """Return R_i - mean R over the survivors of a group [G] (Dr. GRPO).

    Reference: cancel Eq. 29; Dr. GRPO arXiv 2503.20783; verl core_algos.compute_grpo_outcome_advantage
        without std.
    Deviation: exactly zero when all survivors have the same reward or only one is left; verl gives a lone
        sample its reward.
    """
    centered = rewards - masked_mean(rewards, survivors)
    return jnp.where(differ(rewards, survivors), centered, 0)


@per_group
def rloo(rewards: Float[Array, " G"], survivors: Bool[Array, " G"]) -> Float[Array, " G"]:
    """Return R_i minus the mean of the n - 1 other survivors: n / (n - 1) times `grpo_no_std` [G].

    Reference: lr App. C; RLOO arXiv 2402.14740; verl core_algos.compute_rloo_outcome_advantage.
    Deviation: a lone survivor gets zero, verl gives it its reward.
    """
    count = jnp.sum(survivors, dtype=jnp.float32)
    centered = rewards - masked_mean(rewards, survivors)
    return jnp.where(differ(rewards, survivors), centered * (count / jnp.maximum(count - 1, 1)), 0)


def gpg(batch: TokenBatch, survivors: SequenceMask) -> PerSequence:
    """Return `grpo_no_std` times B / (number of sequences with a nonzero reward) [B] (GPG).

    Reference: GPG arXiv 2504.02546; verl core_algos.compute_gpg_outcome_advantage.
    Deviation: as `grpo_no_std`; both numbers count survivors only.
    """
    nonzero = jnp.sum(survivors & (batch.rewards != 0), dtype=jnp.float32)
    count = jnp.sum(survivors, dtype=jnp.float32)
    return grpo_no_std(batch, survivors) * (count / jnp.maximum(nonzero, 1))


def whiten_rewards(batch: TokenBatch, survivors: SequenceMask) -> PerSequence:
    """Return the rewards whitened over the tokens of the batch [B]: long sequences weigh more (REINFORCE++).

    Whitened means minus the mean, over the unbiased standard deviation.

    Reference: REINFORCE++ arXiv 2501.03262; verl core_algos.compute_reinforce_plus_plus_outcome_advantage
        with gamma 1.
    Deviation: exactly zero when all survivors have the same reward. The KL term of the paper's reward is an
        extra term here, see `extras.py`.
    """
    tokens = batch.mask & survivors[:, None]
    rewards = jnp.broadcast_to(batch.rewards[:, None], batch.mask.shape)
    advantages = _whiten(rewards, tokens)[:, 0]
    return jnp.where(survivors & differ(batch.rewards, tokens.any(axis=1)), advantages, 0)


def _whiten(x: PerToken, mask: TokenMask) -> PerToken:
    count = jnp.sum(mask, dtype=jnp.float32)
    centered = x - masked_mean(x, mask)
    variance = masked_sum(centered**2, mask) / jnp.maximum(count - 1, 1)
    return centered * jax.lax.rsqrt(variance + WHITEN_EPSILON)


@dataclass(frozen=True)
class Gae:
    """Generalized advantage estimation from `batch.values`, whitened over the survivors' tokens; [B, T].

    A_t = delta_t + gamma lam A_{t+1} with delta_t = r_t + gamma V_{t+1} - V_t. r_t is the reward at the last
    token of a sequence and zero before it; V and A are zero behind it.

    Reference: GAE arXiv 1506.02438; verl core_algos.compute_gae_advantage_return.
    """

    gamma: Scalar = 1.0
    lam: Scalar = 1.0
    needs: ClassVar[tuple[str, ...]] = ("values",)

    def __call__(self, batch: TokenBatch, survivors: SequenceMask) -> PerToken:
        """Return the whitened advantages [B, T]."""
        raw = self.compute_unwhitened(batch)
        tokens = batch.mask & survivors[:, None]
        return jnp.where(tokens, _whiten(raw, tokens), 0)

    def compute_unwhitened(self, batch: TokenBatch) -> PerToken:
        """Return A before whitening [B, T]; plus `values` it is the target of the critic."""
        assert batch.values is not None
        return jax.vmap(self._sequence)(batch.rewards, jax.lax.stop_gradient(batch.values), batch.mask)

    def _sequence(self, reward: Array, values: Array, mask: Array) -> Array:
        last = mask & (jnp.cumsum(mask[::-1])[::-1] == 1)
        rewards = jnp.where(last, reward, 0)

        def step(carry: tuple[Array, Array], token: tuple[Array, Array, Array]) -> tuple:
            next_value, next_advantage = carry
            reward, value, real = token
            error = reward + self.gamma * next_value - value
            advantage = error + self.gamma * self.lam * next_advantage
            carry = (jnp.where(real, value, next_value), jnp.where(real, advantage, next_advantage))
            return carry, carry[1]

        zero = jnp.float32(0)
        _, advantages = jax.lax.scan(step, (zero, zero), (rewards, values, mask), reverse=True)
        return jnp.where(mask, advantages, 0)


gae = Gae()

ADVANTAGES: dict[str, Estimator] = {
    "reward": reward,
    "grpo": grpo,
    "grpo_no_std": grpo_no_std,
    "rloo": rloo,
    "whitened": whiten_rewards,
    "gae": gae,
    "gpg": gpg,
    "otb": OptimalTokenBaseline(),
    "otb_full_tail": OptimalTokenBaseline(zero_tail=False),
}
GROUP_BASELINES = (grpo, grpo_no_std, rloo, gpg)
"""Advantages that are zero in a group of one response."""


def group_filter(batch: TokenBatch) -> SequenceMask:
    """Return which sequences are in groups whose rewards differ [B]; the others leave the loss.

    Reference: lr App. C; DAPO arXiv 2503.14476; verl algorithm.filter_groups.
    Deviation: the frameworks sample other prompts until the batch is full again; here it gets smaller.
    """
    rewards = by_group(batch.rewards, batch.group_size)
    differs = jax.vmap(differ)(rewards, jnp.ones_like(rewards, bool))
    return jnp.repeat(differs, batch.group_size)
