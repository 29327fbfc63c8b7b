"""Noise injected into logits or weights of the inference engine: mismatch of a chosen size, not by rounding.

Sampling and reported log-probabilities both see the noise, so the engine reports the distribution that it
samples from; only the training engine has no noise.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int, UInt32

from simlab.core.arrays import AnyArray
from simlab.core.pytree import Integer, Scalar, pytree, static
from simlab.core.ranges import NOT_NEGATIVE, SEED
from simlab.core.streams import draw_array
from simlab.models.parameters import Params

ON_WEIGHTS = ("fresh_weight", "fixed_weight")
KINDS = ("fresh", "fixed", "recent", *ON_WEIGHTS)
DIGEST_START, DIGEST_PRIME = 0x811C9DC5, 0x01000193


@pytree
class InjectedNoise:
    """Independent normal noise on every logit or weight of the inference engine.

    On logits, with the standard deviation `scale` in nats:

    - `fresh`: drawn anew for every token that is sampled, as by a kernel whose order changes.
    - `fixed`: a function of the token and its context alone, the same in all runs with one `seed`, as by a
      kernel whose error is always the same.
    - `recent`: a function of the token and of the two before it alone, which a policy can learn.

    On weights, each times 1 + `scale` z with a standard normal z:

    - `fresh_weight`: z is drawn anew for every rollout.
    - `fixed_weight`: z stays the same, also in all runs with one `seed`, so that only the weights change the
      error.

    Raises:
        ValueError: For an unknown kind.

    Reference: vexact V3, V7.
    Deviation: errors of real engines grow with the logits and agree in similar contexts; noise on logits
        does neither.
    """

    scale: Annotated[Scalar, NOT_NEGATIVE]
    kind: str = static(default="fresh")
    seed: Annotated[Integer, SEED] = 0

    def __post_init__(self):
        """Reject an unknown kind."""
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}.")


def perturb_logits(
    logits: Float[AnyArray, "B V"], noise: InjectedNoise | None, key: Array, digest: UInt32[Array, " B"]
) -> Float[Array, "B V"]:
    """Return float32 `logits` [B, V] with the noise on them; None or noise on weights leaves them alone.

    `key` is of this draw and decides fresh noise; `digest` uint32 [B], from `context_digest`, the others.
    """
    if noise is None or noise.kind in ON_WEIGHTS:
        return logits
    if noise.kind == "fresh":
        normal = draw_array(jax.random.normal, key, logits.shape, jnp.float32)
    else:
        first = jax.random.key(noise.seed)
        normal = jax.vmap(
            lambda part: jax.random.normal(jax.random.fold_in(first, part), logits.shape[1:], jnp.float32)
        )(digest)
    return logits + jnp.asarray(noise.scale, jnp.float32) * normal


def perturb_weights(params: Params, noise: InjectedNoise | None, key: Array) -> Params:
    """Return the parameters with the noise on them; None or noise on logits leaves them alone.

    `key` is of this rollout and decides noise that is drawn anew.
    """
    if noise is None or noise.kind not in ON_WEIGHTS:
        return params
    first = key if noise.kind == "fresh_weight" else jax.random.key(noise.seed)
    leaves, tree = jax.tree.flatten(params)
    scale = jnp.asarray(noise.scale, jnp.float32)
    draws = (
        draw_array(jax.random.normal, jax.random.fold_in(first, number), leaf.shape, jnp.float32)
        for number, leaf in enumerate(leaves)
    )
    return tree.unflatten([leaf * (1 + scale * z) for leaf, z in zip(leaves, draws, strict=True)])


def context_digest(tokens: Int[AnyArray, "B S"], kind: str = "fixed") -> UInt32[Array, " B"]:
    """Return the digest of tokens int32 [B, S] on which noise of a `kind` depends: uint32 [B].

    Reference: G. Fowler, L. C. Noll, K.-P. Vo, FNV-1a, a token in place of an octet.
    """
    start = jnp.full(tokens.shape[:1], DIGEST_START, jnp.uint32)
    return lax.scan(lambda digest, token: (extend_digest(digest, token, kind), None), start, tokens.T)[0]


def extend_digest(
    digest: UInt32[Array, " B"], token: Int[Array, " B"], kind: str = "fixed"
) -> UInt32[Array, " B"]:
    """Return the digest of contexts [B] with one more `token` [B] each.

    For `recent` it is the last two tokens, 16 bits each; otherwise a hash of all tokens in order.
    """
    if kind == "recent":
        return (digest << 16) | token.astype(jnp.uint32)
    return (digest ^ token.astype(jnp.uint32)) * jnp.uint32(DIGEST_PRIME)
