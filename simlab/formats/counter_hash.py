"""Random bits from a counter, cheap enough to live inside the rounding kernel."""

import math

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import UInt32


def random_words(key: Array, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Return uint32 words of `shape`, 23 upper bits random: a keyed hash of each element's row-major index.

    Same key, same words. `key` is typed or raw; its two derived words enter at different depths, so that two
    keys do not share one stream at an offset. Indices wrap after 2^32 elements.

    Reference: Steele, Lea & Flood 2014, SplitMix (OOPSLA); C. Wellons, hash-prospector lowbias32.
    Deviation: three products instead of two, as words 1024 apart are otherwise visibly dependent; no last
        xor-shift, which only serves the lower bits.
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    word = (lax.iota(jnp.uint32, math.prod(shape)).reshape(shape) ^ first) * jnp.uint32(0x9E3779B9)
    word = (word ^ (word >> jnp.uint32(16))) * jnp.uint32(0x21F0AAAD)
    word = word ^ (word >> jnp.uint32(15)) ^ second
    return word * jnp.uint32(0x735A2D97)
