"""The trajectory: the one record that a rollout passes to learning."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from simlab.core.arrays import AnyArray
from simlab.core.pytree import pytree


@pytree
class Trajectory:
    """Sampled responses, `B = N x G`, the `G` of one prompt contiguous.

    - `prompts` [B, P], `responses` [B, T]: int32 tokens; padding follows the end of a response.
    - `mask` [B, T]: boolean, true up to and including the end token.
    - `logp_infer` [B, T]: log-probability of each sampled token as the sampling engine reports it.
    - `rewards` [B].
    - `routed_experts` [B, P + T - 1, L, top_k]: the experts that read each token, or None if dense. The last
      token is never read.
    - `logp_infer_vocabulary` [B, T, V]: log-probabilities of all tokens, of the distribution whose sampled
      entry is `logp_infer`; None unless an objective reads it.
    """

    prompts: Array
    responses: Array
    mask: Array
    logp_infer: Array
    rewards: Array
    routed_experts: Array | None = None
    logp_infer_vocabulary: Array | None = None

    @property
    def tokens(self) -> Array:
        """Prompts and responses, [B, P + T]."""
        return jnp.concatenate([self.prompts, self.responses], axis=-1)


def response_mask(responses: Int[AnyArray, "*B T"], end: int) -> Bool[Array, "*B T"]:
    """Return where `responses [..., T]` are real: up to and including the first `end` token."""
    ends = (responses == end).astype(jnp.int32)
    return jnp.cumsum(ends, axis=-1) - ends == 0
