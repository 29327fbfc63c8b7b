"""Accumulators: in which precision and order the products of a matrix product are added.

An accumulator is a record with a method `dot(a, b)`, a [M, K] times b [K, N], both float32 on their grids.
Its numbers may be traced; what shapes the compiled function is static. A model of a tensor core is one more
such record.
"""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Shaped

from simlab.core.arrays import AnyArray
from simlab.core.pytree import pytree, static
from simlab.engines.exact_sum import DEFAULT_SLICES, MAX_TERMS, exact_dot
from simlab.engines.site import Site, store

ORDERS = ("sequential", "pairwise", "split-k")
INSIDE = ("dot", "ordered")
FLOAT32_TILE = (8, 64)
SUBTREE = 8


@runtime_checkable
class Accumulator(Protocol):
    """Interface of the accumulators."""

    def dot(self, a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"]) -> Float[Array, "M N"]:
        """Return float32 [M, N], the product of float32 a [M, K] and b [K, N]."""
        ...


@pytree
class Float32Sum:
    """The device's own float32 product. Its order, and so its last bits, depend on the shapes."""

    def dot(self, a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"]) -> Float[Array, "M N"]:
        """Return float32 [M, N]."""
        return float32_dot(a, b)


@pytree
class ExactSum:
    """Exact sum of the products, rounded once to float32: the same bits for any batch, order and device.

    `slices` says how far below the largest entry of its row of a, or column of b, an entry is still exact;
    see `exact_sum.exact_dot`.
    """

    slices: int = static(default=DEFAULT_SLICES)

    def dot(self, a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"]) -> Float[Array, "M N"]:
        """Return float32 [M, N].

        Raises:
            ValueError: For K above `MAX_TERMS`.
        """
        if a.shape[-1] > MAX_TERMS:
            raise ValueError(f"exact sum of {a.shape[-1]} terms; allowed: at most {MAX_TERMS}")
        return exact_dot(a, b, self.slices)


@pytree
class PartialSums:
    """Sums of `block` products in float32, combined in a given order and rounded to the site `partial`.

    - `sequential`: one running sum; each block of k products is added to it in float32, then it is rounded.
    - `pairwise`: the sum of each block is rounded, then neighbors are added in a binary tree, each result
      rounded; blocks that are missing to a power of two are zeros.
    - `split-k`: K is cut into at most `splits` ranges of ceil(K / splits) terms; the float32 sum of each is
      rounded, then they are added from left to right, each result rounded. `block` has no meaning here.

    The order of blocks, and where rounding happens, never depend on the batch. What a block adds up:

    - `ordered`: its products from left to right, elementwise; the same bits for every shape by construction,
      and on every device if the operands have at most 12 significant bits (all formats but fp32), since their
      products are exact in float32. Masked products at the end (zeros) do not change a bit.
    - `dot`: the device's float32 product, faster; it may differ by 1 ulp with the shape before it is rounded.
      Operands are padded to complete tiles of 8 x 64. With these, blocks of up to 32 terms were equal on CPU
      for every tested shape: measured, not guaranteed. Longer blocks and split-k differ.

    Raises:
        ValueError: For an unknown `order` or `inside`, and `block` or `splits` below 1.
    """

    partial: Site
    block: int = static(default=32)
    order: str = static(default="sequential")
    splits: int = static(default=1)
    inside: str = static(default="dot")

    def __post_init__(self):
        """Reject unknown names and empty blocks."""
        for value, allowed, kind in ((self.order, ORDERS, "order"), (self.inside, INSIDE, "inside")):
            if value not in allowed:
                raise ValueError(f"unknown {kind} {value!r}; allowed: {', '.join(allowed)}")
        if self.block < 1 or self.splits < 1:
            raise ValueError(f"block {self.block}, splits {self.splits}; allowed: integers >= 1")

    def dot(self, a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"]) -> Float[Array, "M N"]:
        """Return float32 [M, N]."""
        terms = -(-a.shape[1] // self.splits) if self.order == "split-k" else self.block
        a_blocks, b_blocks = blocks_of(a.T, terms), blocks_of(b, terms)
        if self.inside == "ordered":
            b_blocks = _stagger(b_blocks)
        zeros = _zeros(*a.shape[:1], *b.shape[1:])
        add = {"sequential": self._sequential, "split-k": self._split, "pairwise": self._pairwise}
        return add[self.order](zeros, a_blocks, b_blocks)

    def _sequential(self, zeros: Array, a: Array, b: Array) -> Array:
        """Add blocks a [n, k, M] and b [n, k, N] to one running sum that starts at zeros [M, N]."""
        return lax.scan(lambda c, ab: (store(self._add_block(c, *ab), self.partial), None), zeros, (a, b))[0]

    def _split(self, zeros: Array, a: Array, b: Array) -> Array:
        def step(c: Array, operands: tuple[Array, Array]) -> tuple[Array, None]:
            partial = store(self._add_block(zeros, *operands), self.partial)
            return store(c + partial, self.partial), None

        return lax.scan(step, zeros, (a, b))[0]

    def _pairwise(self, zeros: Array, a: Array, b: Array) -> Array:
        group = min(SUBTREE, 1 << (len(a) - 1).bit_length())
        a, b = (jnp.pad(x, ((0, -len(x) % group), (0, 0), (0, 0))) for x in (a, b))

        def leaf(_, operands: tuple[Array, Array]) -> tuple[None, Array]:
            return None, store(self._add_block(zeros, *operands), self.partial)

        def subtree(_, operands: tuple[Array, Array]) -> tuple[None, Array]:
            return None, _tree(list(lax.scan(leaf, None, operands)[1]), self.partial)

        a, b = (x.reshape(-1, group, *x.shape[1:]) for x in (a, b))
        return _tree(list(lax.scan(subtree, None, (a, b))[1]), self.partial)

    def _add_block(self, c: Array, a: Array, b: Array) -> Array:
        if self.inside == "dot":
            return c + dot_in_tiles(a.T, b)
        return add_in_order(c, a, b)


def float32_dot(a: Float[AnyArray, "*M K"], b: Float[AnyArray, " K *N"]) -> Float[Array, "..."]:
    """Return a [..., K] times b [K, N] in full float32, never in a narrower format of the device."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def dot_in_tiles(a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"]) -> Float[Array, "M N"]:
    """Return the float32 product of a [M, K] and b [K, N], padded with zeros to complete tiles."""
    rows, columns = a.shape[0], b.shape[1]
    a = jnp.pad(a, ((0, -rows % FLOAT32_TILE[0]), (0, 0)))
    b = jnp.pad(b, ((0, 0), (0, -columns % FLOAT32_TILE[1])))
    return float32_dot(a, b)[:rows, :columns]


def add_in_order(
    c: Float[AnyArray, "M N"], a: Float[AnyArray, "terms M"], b: Float[AnyArray, "terms padded"]
) -> Float[Array, "M N"]:
    """Return c + a[0] b[0] + a[1] b[1] + ..., added from left to right; a [k, M], b [k, >= N], c [M, N]."""
    for a_row, b_row in zip(a, b, strict=True):
        c = c + a_row[:, None] * b_row[None, : c.shape[1]]
    return c


def blocks_of(x: Shaped[AnyArray, "K N"], terms: int) -> Shaped[Array, "blocks {terms} N"]:
    """Cut x [K, n] into blocks of `terms` rows, the last one filled up with zeros: [blocks, terms, n]."""
    x = jnp.pad(x, ((0, -x.shape[0] % terms), (0, 0)))
    return x.reshape(-1, terms, x.shape[1])


def _zeros(rows: int, columns: int) -> Array:
    """Return zeros that no compiler can fold, so that the first sum is not a special case."""
    return lax.optimization_barrier(jnp.zeros((rows, columns), jnp.float32))


def _stagger(b: Array) -> Array:
    """Pad b [n, k, N] where rows a multiple of 4096 bytes apart would evict each other from the cache."""
    if b.shape[2] % 1024:
        return b
    return lax.optimization_barrier(jnp.pad(b, ((0, 0), (0, 0), (0, 16))))


def _tree(partials: list[Array], site: Site) -> Array:
    """Add neighbors in pairs until one is left, rounding each sum; zeros fill up to a power of two."""
    while len(partials) > 1:
        if len(partials) % 2:
            partials = [*partials, jnp.zeros_like(partials[0])]
        partials = [store(x + y, site) for x, y in zip(partials[::2], partials[1::2], strict=True)]
    return partials[0]


def _partial(fmt: str, **options) -> PartialSums:
    return PartialSums(Site.of(fmt, overflow="format"), **options)


ACCUMULATORS: dict[str, Accumulator] = {
    "float32": Float32Sum(),
    "exact": ExactSum(),
    # The device-independent float32 sum: from left to right, one product at a time.
    "float32-ordered": PartialSums(Site(), block=16, inside="ordered"),
    "bf16-partial-32": _partial("bf16"),
    "bf16-partial-32-ordered": _partial("bf16", inside="ordered"),
    "bf16-pairwise-32": _partial("bf16", order="pairwise"),
    "bf16-pairwise-32-ordered": _partial("bf16", order="pairwise", inside="ordered"),
    "bf16-split-k-4": _partial("bf16", order="split-k", splits=4),
    "bf16-split-k-4-ordered": _partial("bf16", order="split-k", splits=4, inside="ordered"),
    "fp16-partial-32": _partial("fp16"),
    "fp16-partial-32-ordered": _partial("fp16", inside="ordered"),
}
