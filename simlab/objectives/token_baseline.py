"""The optimal token baseline: one baseline per group and position, weighted by the energy of the score."""

from typing import ClassVar

import jax.numpy as jnp

from simlab.core.pytree import pytree, static
from simlab.objectives.batch import PerToken, SequenceMask, TokenBatch, by_group

OTB_EPSILON = 1e-8


@pytree
class OptimalTokenBaseline:
    """A_t = G - b_t with b_t = sum_i G_i W_it / (sum_i W_it + 1e-8) over the group's members that reach t.

    G is the reward. W_t is the cumulative sum of 1 - 2 q + sum_v q^2, the squared norm of the score in the
    logits under pi_train = q, each term times the squared correction weight if any. With `zero_tail`, b is
    zero where only the longest response of the group is left.

    Reference: OTB arXiv 2602.07078; verl core_algos.compute_optimal_token_baseline_advantage.
    """

    zero_tail: bool = static(default=True)
    needs: ClassVar[tuple[str, ...]] = ("sum_squared_probabilities",)

    def __call__(self, batch: TokenBatch, survivors: SequenceMask) -> PerToken:
        """Return the advantages [B, T] without correction weights."""
        return self.weigh(batch, survivors, jnp.ones(batch.mask.shape, jnp.float32))

    def weigh(self, batch: TokenBatch, survivors: SequenceMask, weights: PerToken) -> PerToken:
        """Return the advantages [B, T] under correction weights [B, T]."""
        assert batch.sum_squared_probabilities is not None
        tokens = batch.mask & survivors[:, None]
        energy = 1 - 2 * jnp.exp(batch.logp_train) + batch.sum_squared_probabilities
        paths = jnp.where(tokens, jnp.cumsum(jnp.where(tokens, energy * weights**2, 0), axis=1), 0)
        rewards = jnp.where(tokens, batch.rewards[:, None], 0)
        paths, rewards, tokens = (by_group(x, batch.group_size) for x in (paths, rewards, tokens))
        baseline = jnp.sum(rewards * paths, axis=1) / (jnp.sum(paths, axis=1) + OTB_EPSILON)
        members = jnp.sum(by_group(survivors, batch.group_size), axis=1)[:, None]
        alone = jnp.sum(tokens, axis=1) == 1
        without = (alone & self.zero_tail) | (members == 1)
        advantages = rewards - jnp.where(without, 0, baseline)[:, None]
        return jnp.where(tokens, advantages, 0).reshape(batch.mask.shape)
