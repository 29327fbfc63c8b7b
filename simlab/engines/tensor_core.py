"""Bit-exact tensor cores: products aligned to their largest exponent, truncated, added without error.

An operand becomes a float32 significand, of magnitude below 2, and an exponent. The product of two
significands is exact in float32; in units of the last bit that the accumulator keeps it converts to int32,
toward zero, and the sums of such integers are exact in any order. So a product costs about a dozen vector
instructions, and nothing is larger than the result.

All is plain XLA, a loop over blocks: Pallas compiles nothing for a CPU, and a kernel for each kind of device
would be as many models of one accumulator. What it costs is the result `bench_tensor_cores`.
"""

from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

from simlab.core.arrays import AnyArray
from simlab.core.catalog import lookup
from simlab.core.pytree import Integer, pytree, static
from simlab.engines.accumulate import blocks_of
from simlab.formats import FORMATS, Format

MIN_EXPONENT, MAX_EXPONENT = -126, 127
ZERO_EXPONENT = -126
FRACTION_BITS = 23
FRACTION_MASK, FIELD_MASK, SIGN = (1 << 23) - 1, 255, np.int32(-(2**31))
GROUP = 16  # so many products, below 2^27 units each, have a sum within int32
NOTHING_LEFT = -60  # a significand times 2^-60 units truncates to zero


class Split(NamedTuple):
    """Numbers as `significand` * 2^`exponent`: float32 of magnitude below 2, infinite or NaN; and int32."""

    significand: Float[Array, "*S"]
    exponent: Int[Array, "*S"]


@pytree
class TensorCore:
    """Accumulator of one tensor core for operands of one format; every block adds to the running sum.

    A step adds `block` products to the running sum. The exponent of a product is the sum of those of its
    operands, where a subnormal has `min_exponent`, that of its format, and a zero -126; the running sum has
    its own, at least -126. With m the largest of them, every product and the running sum are truncated toward
    zero to multiples of 2^(m - `fraction_bits`) and added exactly; the sum is truncated toward zero to
    `result_bits` fraction bits, within the exponents of float32. Sums beyond those are infinite, a zero sum
    is +0, infinities and NaN do what they do in float32.

    K is filled up to complete blocks with zeros on both sides, which changes no bit: the exponent of their
    products, -252, is below that of any running sum. The numbers are data: `fraction_bits` at most 25,
    `result_bits` at most that and 23. Operands have at most 12 significant bits.

    Reference: MMA-Sim (arXiv 2511.10909) Sec. IV.
    """

    block: int = static()
    fraction_bits: Integer
    result_bits: Integer
    min_exponent: Integer

    def dot(self, a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"]) -> Float[Array, "M N"]:
        """Return float32 [M, N], with the bits of the unit that goes over K from left to right."""
        rows, columns = (blocks_of(x, self.together) for x in (a.T, b))
        return self.add_blocks(_split(rows, self.min_exponent), _split(columns, self.min_exponent))

    @property
    def together(self) -> int:
        """Products per step of the loop: complete blocks, at least 16, or XLA on CPU does not vectorize."""
        return -(-GROUP // self.block) * self.block

    def add_blocks(self, rows: Split, columns: Split) -> Float[Array, "M N"]:
        """Return float32 [M, N] of split operands [n, `together`, M] and [n, `together`, N]."""

        def step(bits: Array, operands: tuple[Split, Split]) -> tuple[Array, None]:
            # Slices of the loop's operands, fused into the arithmetic, would keep it from being vectorized.
            operands = lax.optimization_barrier(operands)
            total = _split(_float(bits), MIN_EXPONENT)
            rows, columns = ([Split(*pair) for pair in zip(*side, strict=True)] for side in operands)
            for first in range(0, self.together, self.block):
                block = slice(first, first + self.block)
                total = self._add_block(total, rows[block], columns[block])
            return _bits(_join_parts(total)), None

        zeros = jnp.zeros((rows.exponent.shape[2], columns.exponent.shape[2]), jnp.int32)
        return _float(lax.scan(step, zeros, (rows, columns))[0])

    def _add_block(self, total: Split, rows: list[Split], columns: list[Split]) -> Split:
        """Add the products of rows [M] and columns [N] to the running sum [M, N]."""
        pairs = list(zip(rows, columns, strict=True))
        exponents = [row.exponent[:, None] + column.exponent[None, :] for row, column in pairs]
        largest = reduce(jnp.maximum, exponents, total.exponent)

        def align(significand: Array, exponent: Array) -> Array:
            shift = jnp.maximum(exponent - largest + self.fraction_bits, NOTHING_LEFT)
            return significand * _power_of_two(shift)

        terms = [
            align(row.significand[:, None] * column.significand[None, :], exponent)
            for (row, column), exponent in zip(pairs, exponents, strict=True)
        ]
        terms.append(align(*total))
        # Finite terms are too small to overflow: their float32 sum is infinite or NaN where a term is.
        special = reduce(jnp.add, terms)
        summed = _truncate_sum(_exact_sum(terms), largest - self.fraction_bits, self.result_bits)
        return _where(jnp.isfinite(special), summed, Split(special, jnp.full_like(largest, ZERO_EXPONENT)))


@pytree
class MXTensorCore:
    """A tensor core that takes MX blocks of as many elements as its own; operands come scaled already.

    A scale is a power of two, which adds to the exponents of its elements, those of subnormals among them. It
    is read off the largest element of the block, which the floor rule puts into the highest binade of the
    format; `depth` says how many binades lie between that one and the smallest normal number (E4M3: 14).

    Reference: MMA-Sim (arXiv 2511.10909), mxf8f6f4 with block scales; OCP MX v1.0 Sec. 6.3.
    Deviation: the exponent of a zero stays -126, as if its scale were 1: that matters only for products 2^100
        times smaller than the scales of other blocks.
    """

    core: TensorCore
    depth: Integer

    def dot(self, a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"]) -> Float[Array, "M N"]:
        """Return float32 [M, N] of a [M, K] and b [K, N], each an element times its scale."""
        return self.core.add_blocks(self._split_blocks(a.T), self._split_blocks(b))

    def _split_blocks(self, x: Array) -> Split:
        """Split x [K, n] in blocks along K, filled up with zeros."""
        blocks = blocks_of(x, self.core.block)
        largest = jnp.max(_bits(blocks) & ~SIGN, axis=1, keepdims=True)
        top = (largest >> FRACTION_BITS) - MAX_EXPONENT
        return _split(blocks, jnp.maximum(top - self.depth, MIN_EXPONENT))


@pytree
class NVFP4TensorCore:
    """Blackwell's accumulator for E2M1 under E4M3 scales: four groups of 16 products per step.

    The products of a group are added without error. Their sum, times both scales, counts with the exponent of
    the scales alone, each at least -6. With m the largest exponent of the groups and of the running sum, all
    are truncated toward zero to multiples of 2^(m - `fraction_bits`) and added exactly; the sum is truncated
    toward zero to `result_bits` fraction bits. The numbers are data: at most 35, and 23.

    Operands come scaled already, an E2M1 number times its E4M3 scale, which float32 holds, as it does the sum
    of a group. The exponent of a scale is read off the largest element of its group: 6 under rounding to
    nearest, unless the scale is subnormal. A float32 scale of the tensor is not part of it: it multiplies the
    result.

    Reference: MMA-Sim (arXiv 2511.10909), mxf4nvf4 with ue4m3 scales of 16 elements.
    Deviation: the exponent of a group of zeros is -126, whatever its scale: that matters only with products
        of scales 2^27 times smaller.
    """

    fraction_bits: Integer = 35
    result_bits: Integer = 23

    def dot(self, a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"]) -> Float[Array, "M N"]:
        """Return float32 [M, N] of a [M, K] and b [K, N], each an element times its scale."""

        def step(bits: Array, operands: tuple[Split, Split]) -> tuple[Array, None]:
            rows, columns = operands
            sums = jnp.einsum(
                "gkm,gkn->gmn", rows.significand, columns.significand, precision=lax.Precision.HIGHEST
            )
            exponents = rows.exponent[:, :, None] + columns.exponent[:, None, :]
            total = self._add_groups(_split(_float(bits), MIN_EXPONENT), Split(sums, exponents))
            return _bits(_join_parts(total)), None

        zeros = jnp.zeros((a.shape[0], b.shape[1]), jnp.int32)
        return _float(lax.scan(step, zeros, (_fp4_groups(a.T), _fp4_groups(b)))[0])

    def _add_groups(self, total: Split, groups: Split) -> Split:
        """Add groups [4, M, N] to the running sum [M, N]."""
        terms = Split(*(jnp.concatenate([x[None], y]) for x, y in zip(total, groups, strict=True)))
        largest = jnp.max(terms.exponent, axis=0)
        shift = jnp.maximum(terms.exponent - largest[None] + self.fraction_bits, NOTHING_LEFT)
        aligned = terms.significand * _power_of_two(shift)
        # A sum of a group is below 2^11 significands, so 46 bits: upper and lower ones apart.
        high = (aligned * jnp.float32(2.0**-20)).astype(jnp.int32)
        low = (aligned - high.astype(jnp.float32) * jnp.float32(2.0**20)).astype(jnp.int32)
        negative, high, low = _magnitude(jnp.sum(high, axis=0), jnp.sum(low, axis=0), 20)
        # 31 bits of the magnitude are enough, see `_truncate_sum`.
        drop = jnp.maximum(21 - lax.clz(high), 0)
        magnitude = (high << (20 - drop)) | (low >> drop)
        summed = _truncate_magnitude(
            negative, magnitude, largest - self.fraction_bits + drop, self.result_bits
        )
        special = jnp.sum(terms.significand, axis=0)
        return _where(jnp.isfinite(special), summed, Split(special, jnp.full_like(largest, ZERO_EXPONENT)))


def _fp4_groups(x: Array) -> Split:
    """Cut x [K, n] into groups [steps, 4, 16, n] over the powers of two of their scales, [steps, 4, n]."""
    groups = blocks_of(x, 64).reshape(-1, 4, 16, x.shape[1])
    largest = jnp.max(_bits(groups) & ~SIGN, axis=2)
    # Six times a scale: its exponent is 2 above that of the scale, or 3.
    exponent = (largest >> FRACTION_BITS) - MAX_EXPONENT - 3 + ((largest >> (FRACTION_BITS - 1)) & 1)
    exponent = jnp.maximum(exponent, FORMATS["e4m3fn"].min_exponent)
    significand = groups * _power_of_two(-exponent)[:, :, None]
    return Split(significand, jnp.where(largest == 0, ZERO_EXPONENT, exponent))


def _exact_sum(terms: list[Array]) -> tuple[Array, Array]:
    """Add terms truncated to integers; return (high, low) of high * 2^16 + low."""
    groups = [terms[i : i + GROUP] for i in range(0, len(terms), GROUP)]
    sums = [reduce(jnp.add, [term.astype(jnp.int32) for term in group]) for group in groups]
    high = reduce(jnp.add, [x >> 16 for x in sums])
    low = reduce(jnp.add, [x & 0xFFFF for x in sums])
    return high, low


def _truncate_sum(total: tuple[Array, Array], unit: Array, bits: Integer) -> Split:
    """Truncate (high, low) times 2^unit toward zero to so many fraction bits, from -126 to infinity."""
    negative, high, low = _magnitude(*total, 16)
    # 31 bits of the magnitude are enough: cutting more off later is the same as cutting all at once.
    long = high >= 1 << 15
    magnitude = jnp.where(long, (high << 12) | (low >> 4), (high << 16) | low)
    return _truncate_magnitude(negative, magnitude, jnp.where(long, unit + 4, unit), bits)


def _magnitude(high: Array, low: Array, bits: int) -> tuple[Array, Array, Array]:
    """Return the sign and the (high, low) of the magnitude of high * 2^bits + low, low in 0..2^bits - 1."""
    mask = (1 << bits) - 1
    high, low = high + (low >> bits), low & mask
    negative = high < 0
    low = jnp.where(negative, -low, low)
    return negative, jnp.where(negative, -high, high) + (low >> bits), low & mask


def _truncate_magnitude(negative: Array, magnitude: Array, unit: Array, bits: Integer) -> Split:
    """Truncate an int32 magnitude times 2^unit to so many fraction bits, from -126 to infinity."""
    length = 32 - lax.clz(magnitude)
    num_dropped = jnp.maximum(jnp.maximum(length - 1, MIN_EXPONENT - unit) - bits, 0)
    magnitude = (magnitude >> num_dropped) << num_dropped
    exponent = jnp.where(magnitude == 0, ZERO_EXPONENT, jnp.maximum(length - 1 + unit, MIN_EXPONENT))
    significand = magnitude.astype(jnp.float32) * _power_of_two(jnp.clip(unit - exponent, -31, 0))
    significand = jnp.where(exponent > MAX_EXPONENT, jnp.float32(jnp.inf), significand)
    return Split(
        jnp.where(negative, -significand, significand),
        jnp.where(exponent > MAX_EXPONENT, ZERO_EXPONENT, exponent),
    )


def _split(x: Array, min_exponent: Integer) -> Split:
    """Split float32 x; subnormals of the format keep its smallest exponent and have significands below 1."""
    bits = _bits(x)
    field, fraction = (bits >> FRACTION_BITS) & FIELD_MASK, bits & FRACTION_MASK
    # By bits, because float32 arithmetic flushes its own subnormals.
    tiny = fraction.astype(jnp.float32) * jnp.float32(2.0**-FRACTION_BITS)
    normal = _float(fraction | _bits(jnp.float32(1)))
    own = jnp.maximum(field, 1) - MAX_EXPONENT
    exponent = jnp.maximum(own, min_exponent)
    magnitude = jnp.where(field == 0, tiny, normal) * _power_of_two(jnp.maximum(own - exponent, MIN_EXPONENT))
    special = field == FIELD_MASK
    # Not by bits: LLVM makes `bits & 0x7fffffff == 0` a comparison of floats, which flushes subnormals.
    exponent = jnp.where(special | (magnitude == 0), ZERO_EXPONENT, exponent)
    return Split(jnp.where(special, x, jnp.where(bits < 0, -magnitude, magnitude)), exponent)


def _join_parts(x: Split) -> Array:
    """Return float32 significand * 2^exponent, for exponents from -126 to 127."""
    bits = _bits(x.significand)
    subnormal = (jnp.abs(x.significand) * jnp.float32(2.0**FRACTION_BITS)).astype(jnp.int32) | (bits & SIGN)
    normal = bits + (x.exponent << FRACTION_BITS)
    finite = _float(jnp.where(jnp.abs(x.significand) < 1, subnormal, normal))
    return jnp.where(jnp.isfinite(x.significand), finite, x.significand)


def _where(condition: Array, yes: Split, no: Split) -> Split:
    return Split(*(jnp.where(condition, x, y) for x, y in zip(yes, no, strict=True)))


def _power_of_two(exponent: Array) -> Array:
    return _float((exponent + MAX_EXPONENT) << FRACTION_BITS)


def _bits(x: Array) -> Array:
    return lax.bitcast_convert_type(x, jnp.int32)


def _float(bits: Array) -> Array:
    return lax.bitcast_convert_type(bits, jnp.float32)


def _cores(block: int, fraction_bits: int, result_bits: int, formats: str) -> dict[str, TensorCore]:
    return {
        name: TensorCore(
            block, np.int32(fraction_bits), np.int32(result_bits), np.int32(FORMATS[name].min_exponent)
        )
        for name in formats.split()
    }


TENSOR_CORES: dict[str, dict[str, TensorCore]] = {
    "volta": _cores(4, 23, 23, "fp16"),
    "ampere": _cores(8, 24, 23, "fp16 bf16"),
    "ada": _cores(16, 13, 13, "e4m3fn e5m2"),
    "hopper": _cores(16, 25, 23, "fp16 bf16") | _cores(32, 13, 13, "e4m3fn e5m2"),
    "blackwell": _cores(16, 25, 23, "fp16 bf16") | _cores(32, 25, 23, "e4m3fn e5m2"),
}
"""Architecture -> operand format -> accumulator of mma (Volta), mma.sync (Ampere, Ada), wgmma (Hopper) and
tcgen05 (Blackwell)."""


def find_tensor_core(architecture: str, fmt: str | Format | None) -> TensorCore:
    """Return the accumulator of an architecture for operands of a format, a name of `FORMATS` or its record.

    Raises:
        ValueError: For an unknown architecture, and a format that it does not have, or none.
    """
    cores = lookup(TENSOR_CORES, architecture, "architecture")
    if fmt is None:
        raise ValueError(f"{architecture} needs the format of its operands; allowed: {', '.join(cores)}")
    if isinstance(fmt, Format):
        fmt = next((name for name, known in FORMATS.items() if _same(known, fmt)), repr(fmt))
    return lookup(cores, fmt, f"format of {architecture}")


def _same(one: Format, other: Format) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)
