"""Sums over keys whose ranges depend on how many keys a query sees, as in split-KV decoding."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.core.pytree import pytree, static


@pytree
class LengthSplits:
    """Sum over K keys in at most `splits` ranges of ceil(n / splits), n the number of keys that a row sees.

    Each range is added from left to right in float32, then the ranges are added from left to right. So the
    order of sums of a query changes whenever its length passes a multiple of `splits`. n ends with the last
    entry of the row of a that is not zero: masked keys have weight zero.

    Reference: SGLang and vLLM triton_decode_attention (NUM_KV_SPLITS, kv_len_per_split).
    Deviation: weights are relative to the largest score of all ranges; the kernel takes that of each range
        and rescales its sum. Weights that underflow at the end shorten n.
    """

    splits: int = static(default=8)

    def __post_init__(self):
        """Reject empty ranges."""
        if self.splits < 1:
            raise ValueError(f"splits must be an integer >= 1, got {self.splits}.")

    def dot(self, a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"]) -> Float[Array, "M N"]:
        """Return float32 [M, N] of weights a [M, K] and values b [K, N]."""
        count = a.shape[1]
        seen = count - jnp.argmax(a[:, ::-1] != 0, axis=1)
        size = jnp.maximum(-(-seen // self.splits), 1)

        def step(sums: tuple[Array, Array], key: tuple[Array, Array, Array]) -> tuple[tuple, None]:
            done, running = sums
            number, weights, values = key
            first = (number % size == 0)[:, None]
            done = jnp.where(first, done + running, done)
            return (done, jnp.where(first, 0.0, running) + weights[:, None] * values[None]), None

        zeros = jnp.zeros((a.shape[0], b.shape[1]), jnp.float32)
        (done, running), _ = lax.scan(step, (zeros, zeros), (jnp.arange(count), a.T, b))
        return done + running
