"""Token probabilities of Gaussian logits, drawn as in the paper's Appendix C.1.

Logits z ~ N(0, 1.5^2) in float32, a vocabulary of 2048; tokens are drawn from the rounded
probabilities, and both probabilities of each drawn token are stored. The paper states the number of token
probabilities (5e4), but not the number of vectors of logits, which sets `per_vector`.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from experiments.measurements.softmax.placements import EXACT, Setting, probabilities
from simlab.core.streams import stream

STD = 1.5
VOCABULARY = 2048
CHUNK = 250  # vectors at a time: 2 MB of logits, which stay in the processor's cache
BLOCK = 64


def logits(key: Array, n: int, vocabulary: int = VOCABULARY) -> Array:
    """Return n vectors of logits [n, vocabulary]."""
    return STD * jax.random.normal(stream(key, "logits"), (n, vocabulary), jnp.float32)


def chunk_keys(seed: int, count: int) -> Array:
    """Return one key per chunk of vectors; a chunk's key does not depend on how many there are."""
    key = stream(jax.random.key(seed), "chunks")
    return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(count))


def draw(p: Array, u: Array) -> Array:
    """Return the tokens [k] at which the running sum of `p` [V] passes u [k] of its total.

    `p` need not sum to 1. Blocks first, then tokens of a block: that keeps the float32 sums short,
    and their rounding below 1e-6 of the total.
    """
    blocks = jnp.pad(p, (0, -len(p) % BLOCK)).reshape(-1, BLOCK)
    ends = jnp.cumsum(blocks.sum(-1))
    target = u * ends[-1]
    block = jnp.minimum((ends[None, :] <= target[:, None]).sum(-1), len(ends) - 1)
    rest = target - jnp.where(block > 0, ends[block - 1], 0)
    inner = jnp.cumsum(blocks[block], -1)
    return block * BLOCK + jnp.minimum((inner <= rest[:, None]).sum(-1), BLOCK - 1)


def draw_pairs(train: Array, infer: Array, u: Array) -> tuple[Array, Array]:
    """Return (p_train, p_infer), each [n, k], of the tokens that u [n, k] draws from infer [n, V]."""
    token = jax.vmap(draw)(infer, u)
    return jnp.take_along_axis(train, token, -1), jnp.take_along_axis(infer, token, -1)


@partial(jax.jit, static_argnames=("per_vector", "tokens"))
def sample(seed_keys: Array, settings: Setting, active: Array, per_vector: int, tokens: int) -> Array:
    """Return p_float32 and p_rounded [2, settings, tokens] of tokens drawn from each p_rounded.

    Each vector of logits gives `per_vector` tokens. All settings see the same logits and the same
    uniform numbers: they differ by their rounding alone. Settings that are not `active` are skipped
    and return NaN, so that one program serves every choice of settings.
    Reference: hacking App. C.1, Eq. 44-45.
    """
    n = min(CHUNK, tokens // per_vector)
    rest = jnp.full((n,), -jnp.inf)

    def chunk(key: Array) -> tuple[Array, Array]:
        z = logits(key, n)
        u = jax.random.uniform(stream(key, "tokens"), (n, per_vector))
        train = probabilities(z, rest, EXACT)
        skipped = (jnp.full_like(u, jnp.nan),) * 2

        def one(item: tuple[Array, Setting]) -> tuple[Array, Array]:
            drawn = lambda: draw_pairs(train, probabilities(z, rest, item[1]), u)  # noqa: E731
            return jax.lax.cond(item[0], drawn, lambda: skipped)

        return jax.lax.map(one, (active, settings))

    pairs = jnp.stack(jax.lax.map(chunk, seed_keys))
    return jnp.moveaxis(pairs, 2, 1).reshape(2, len(active), tokens)


@jax.jit
def distributions(key: Array, chosen: Setting) -> tuple[Array, Array]:
    """Return (p_float32, p_rounded), each [250, V]: the complete distributions of a chunk of `sample`."""
    z, rest = logits(key, CHUNK), jnp.full((CHUNK,), -jnp.inf)
    return probabilities(z, rest, EXACT), probabilities(z, rest, chosen)
