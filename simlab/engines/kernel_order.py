"""Orders of summation above one instruction: the partial sums that a kernel keeps, and how it joins them.

A tensor core alone adds from left to right over all of K, whatever the batch: the fixed order of
batch-invariant kernels. The records here wrap any accumulator, and may wrap each other.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.core.pytree import pytree, static
from simlab.engines.accumulate import Accumulator, blocks_of


@pytree
class Promoted:
    """Partial sums of `every` products, each begun at zero and added to a float32 sum.

    Reference: DeepSeek-V3 Sec. 3.3.2 (every 128 products); CUTLASS sm90 without fast accumulation.
    """

    inner: Accumulator
    every: int = static(default=128)

    def __post_init__(self):
        """Reject empty partial sums."""
        if self.every < 1:
            raise ValueError(f"promotion every {self.every} products; allowed: an integer >= 1")

    def dot(self, a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"]) -> Float[Array, "M N"]:
        """Return float32 [M, N]."""
        return _sum_of_ranges(self.inner.dot, a, b, self.every)


@pytree
class SplitK:
    """K in `splits` ranges of complete tiles, one partial sum each, added in float32 from left to right.

    Reference: CUTLASS GemmSplitKParallel; cuBLAS split-K with a float32 workspace.
    """

    inner: Accumulator
    splits: int = static(default=4)
    tile: int = static(default=32)

    def __post_init__(self):
        """Reject empty ranges."""
        if self.splits < 1 or self.tile < 1:
            raise ValueError(f"splits {self.splits}, tile {self.tile}; allowed: integers >= 1")

    def dot(self, a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"]) -> Float[Array, "M N"]:
        """Return float32 [M, N]."""
        tiles = -(-a.shape[1] // self.tile)
        return _sum_of_ranges(self.inner.dot, a, b, max(-(-tiles // self.splits), 1) * self.tile)


@pytree
class LastTileFirst:
    """Tiles of `tile` terms from the last to the first, through one running sum: values in FlashAttention.

    Its kernels go over the keys from the end, and the running sum stays in the registers that the tensor core
    adds to. Tiles of zeros, as of masked keys, change nothing.

    Reference: FlashAttention-2 and -3, forward kernels.
    Deviation: no tile rescales the running sum to the largest score so far, which is not known here. Where it
        rises, the kernel rounds the sum once more, in float32; and it rounds P relative to that score, not to
        the last one.
    """

    inner: Accumulator
    tile: int = static(default=128)

    def __post_init__(self):
        """Reject empty tiles."""
        if self.tile < 1:
            raise ValueError(f"tile {self.tile}; allowed: an integer >= 1")

    def dot(self, a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"]) -> Float[Array, "M N"]:
        """Return float32 [M, N]."""
        a_tiles, b_tiles = blocks_of(a.T, self.tile)[::-1], blocks_of(b, self.tile)[::-1]
        return self.inner.dot(a_tiles.reshape(-1, a.shape[0]).T, b_tiles.reshape(-1, b.shape[1]))


def _sum_of_ranges(dot: Callable[[Array, Array], Array], a: Array, b: Array, terms: int) -> Array:
    """Return dot of every range of `terms` along K, the last one filled up with zeros, added in float32."""

    def add(total: Array, operands: tuple[Array, Array]) -> tuple[Array, None]:
        rows, columns = operands
        return total + dot(rows.T, columns), None

    zeros = jnp.zeros((a.shape[0], b.shape[1]), jnp.float32)
    return lax.scan(add, zeros, (blocks_of(a.T, terms), blocks_of(b, terms)))[0]
