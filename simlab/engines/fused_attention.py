"""Attention in one kernel: scores, mask, softmax and values, block of keys by block of keys.

On a GPU a Pallas kernel, one program per query. Elsewhere the same arithmetic for all queries at once: Pallas
only interprets kernels on a CPU, one program after another.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from simlab.core.arrays import AnyArray
from simlab.core.pytree import pytree, static
from simlab.engines.accumulate import blocks_of, float32_dot
from simlab.formats.scale_rules import divide, multiply

LOWEST = float(jnp.finfo(jnp.float32).min)
LEAST_EXPONENT = -87.0
LOG2_E = 1.4426950408889634
LN_2, REST_OF_LN_2 = 6.9314575195e-01, 1.4286067653e-06
THIRD_ORDER, FIFTH_ORDER = 1.6666625440e-1, -2.7667332906e-3


@pytree
class FusedAttention:
    """Attention by an online softmax over blocks of `block` keys, from the first to the last, in float32.

    The largest score m, the sum l of the weights and the weighted sum o of the values begin at the lowest
    number, 0 and 0. A block with scores s = (q k) / sqrt(D), -inf where masked, and values v makes of them

        m' = max(m, max s)    l' = l exp(m - m') + sum exp(s - m')    o' = o exp(m - m') + exp(s - m') v

    The result is o / l after the last block. A sum within a block, and that of q k, adds the upper half of
    its terms to the lower half until one is left; zeros fill it up to a power of two. Products are rounded
    before they are added, and exp is made of products, sums and a quotient. So no compiler has a choice: a
    query has the same bits alone and among others, and what is masked never changes a bit. A GPU may round
    quotients otherwise than a CPU.

    Reference: FlashAttention-2 (arXiv 2307.08691) Alg. 1; vLLM kernel_unified_attention, 2D grid.
    """

    block: int = static(default=16)

    def __post_init__(self):
        """Reject blocks that Triton cannot hold."""
        if self.block < 1 or self.block & (self.block - 1):
            raise ValueError(f"block must be a power of two, got {self.block}.")

    def attend(
        self,
        queries: Float[AnyArray, "T D"],
        keys: Float[AnyArray, "S D"],
        values: Float[AnyArray, "S D"],
        mask: Bool[AnyArray, "T S"],
    ) -> Float[Array, "T D"]:
        """Return float32 [T, D] of queries [T, D], keys and values [S, D] and mask [T, S].

        The gradient is that of float32 attention, whatever the order of sums.
        """
        # The cache holds keys as [D, S]: the compiler cancels both transpositions.
        return _attend(queries, keys.T, values, mask, self)


class Sums(NamedTuple):
    """State of one query: largest score [], sum of weights [], weighted sum of values [D]."""

    largest: Float[Array, ""]
    total: Float[Array, ""]
    weighted: Float[Array, " D"]


@jax.custom_jvp
@jax.jit
def _attend(queries: Array, keys: Array, values: Array, mask: Array, order: FusedAttention) -> Array:
    kernel, loop = (partial(path, block=order.block) for path in (attend_by_kernel, attend_by_loop))
    return lax.platform_dependent(queries, keys, values, mask, cuda=kernel, rocm=kernel, default=loop)


@_attend.defjvp
def _attend_jvp(primals, tangents):
    queries, keys, values, mask, _ = primals

    def attend(queries: Array, keys: Array, values: Array) -> Array:
        scores = float32_dot(queries, keys) * queries.shape[1] ** -0.5
        return float32_dot(jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)), values)

    return _attend(*primals), jax.jvp(attend, (queries, keys, values), tangents[:3])[1]


def attend_by_loop(
    queries: Float[AnyArray, "T D"],
    keys: Float[AnyArray, "D S"],
    values: Float[AnyArray, "S D"],
    mask: Bool[AnyArray, "T S"],
    *,
    block: int,
) -> Float[Array, "T D"]:
    """Return [T, D] of queries [T, D], keys [D, S], values [S, D] and mask [T, S], all queries at once."""
    depth = queries.shape[1]
    unused = (0, _next_power_of_two(depth) - depth)
    queries, keys = jnp.pad(queries, ((0, 0), unused)), jnp.pad(keys, (unused, (0, 0)))
    blocks = blocks_of(keys.T, block).swapaxes(1, 2), blocks_of(values, block)
    add = partial(_add_block, scale=depth**-0.5)

    def attend(query: Array, seen: Array) -> Array:
        def step(sums: Sums, of_block: tuple[Array, Array, Array]) -> tuple[Sums, None]:
            return add(sums, query, *of_block), None

        of_blocks = (*blocks, blocks_of(seen[:, None], block)[..., 0])
        sums, _ = lax.scan(step, _empty_sums(depth), of_blocks)
        return divide(sums.weighted, sums.total)

    return jax.vmap(attend)(queries, mask)


def attend_by_kernel(
    queries: Float[AnyArray, "T D"],
    keys: Float[AnyArray, "D S"],
    values: Float[AnyArray, "S D"],
    mask: Bool[AnyArray, "T S"],
    *,
    block: int,
    interpret: bool = False,
) -> Float[Array, "T D"]:
    """Return what `attend_by_loop` does, from one Pallas kernel.

    Triton takes arrays of a power of two, so D and S are filled up with numbers that are not loaded.
    """
    # Pallas is imported where it is needed: its import takes a tenth of a second.
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    (count, depth), size = queries.shape, keys.shape[1]
    width, padded = _next_power_of_two(depth), -(-size // block) * block
    row, row_of_mask = (pallas.BlockSpec((None, n), lambda query: (query, 0)) for n in (width, padded))
    cache = [pallas.BlockSpec(shape, lambda _: (0, 0)) for shape in ((width, padded), (padded, width))]
    return pallas.pallas_call(
        partial(_attend_one_query, depth=depth, size=size, block=block),
        out_shape=jax.ShapeDtypeStruct(queries.shape, jnp.float32),
        grid=(count,),
        in_specs=[row, *cache, row_of_mask],
        out_specs=row,
        # A block is a few hundred numbers, so that the sums of one warp need no shared memory.
        compiler_params=triton.CompilerParams(num_warps=1),
        interpret=interpret,
        name="fused_attention",
    )(queries, keys, values, mask)


def _attend_one_query(
    query_ref, keys_ref, values_ref, seen_ref, result_ref, *, depth: int, size: int, block: int
) -> None:
    """Write the attention output of a query to `result_ref`; elements beyond `depth` or `size` are masked."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    width = _next_power_of_two(depth)
    inside = jnp.arange(width) < depth
    query = triton.load(query_ref, mask=inside, other=0.0)

    def step(number: Array, sums: Sums) -> Sums:
        at = pallas.ds(number * block, block)
        present = number * block + jnp.arange(block) < size
        seen = triton.load(seen_ref.at[at], mask=present, other=False)
        keys = triton.load(keys_ref.at[:, at], mask=inside[:, None] & seen[None], other=0.0)
        values = triton.load(values_ref.at[at, :], mask=seen[:, None] & inside[None], other=0.0)
        return _add_block(sums, query, keys, values, seen, scale=depth**-0.5)

    sums = lax.fori_loop(0, -(-size // block), step, _empty_sums(width))
    triton.store(result_ref, divide(sums.weighted, sums.total), mask=inside)


def _next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _empty_sums(width: int) -> Sums:
    return Sums(*(jnp.full(shape, x, jnp.float32) for shape, x in (((), LOWEST), ((), 0.0), (width, 0.0))))


def _add_block(sums: Sums, query: Array, keys: Array, values: Array, seen: Array, *, scale: float) -> Sums:
    """Add n keys [D, n] and values [n, D] to the sums of a query [D]; `seen` [n] is its mask."""
    scores = jnp.where(seen, multiply(_sum_by_halves(multiply(query[:, None], keys)), scale), -jnp.inf)
    largest = jnp.maximum(sums.largest, jnp.max(scores))
    factor, weights = _exponential(sums.largest - largest), _exponential(scores - largest)
    values = jnp.where(seen[:, None], values, 0.0)
    return Sums(
        largest,
        multiply(sums.total, factor) + _sum_by_halves(weights),
        multiply(sums.weighted, factor) + _sum_by_halves(multiply(weights[:, None], values)),
    )


def _exponential(x: Array) -> Array:
    """Return exp(x) of x <= 0 within 2 units of 2^-24, and 0 below -87, the same bits in any program.

    XLA's own exponential on a CPU differs in the last bit with the size of the array.

    Reference: FreeBSD e_expf.c.
    """
    y = jnp.maximum(x, LEAST_EXPONENT)
    power = jnp.floor(multiply(y, LOG2_E) + 0.5)
    # The first product is exact: `LN_2` has 15 bits, the power at most 7.
    high, low = y - power * LN_2, multiply(power, REST_OF_LN_2)
    rest = high - low
    square = multiply(rest, rest)
    series = rest - multiply(square, multiply(square, FIFTH_ORDER) + THIRD_ORDER)
    # A compiler that fuses keeps the quotient and computes the steps before it once.
    series = 1.0 - ((low - multiply(rest, series) / (2.0 - series)) - high)
    scale = lax.bitcast_convert_type((power.astype(jnp.int32) + 127) << 23, jnp.float32)
    return jnp.where(x < LEAST_EXPONENT, 0.0, series * scale)


def _sum_by_halves(x: Array) -> Array:
    """Return the sum of x [n, ...] over its first axis, n a power of two, as `FusedAttention` orders it."""
    while x.shape[0] > 1:
        lower, upper = lax.split(x, (x.shape[0] // 2,) * 2)
        x = lower + upper
    return lax.squeeze(x, (0,))
