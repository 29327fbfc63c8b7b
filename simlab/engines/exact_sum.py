"""Matrix products whose sums are exact: fixed-point slices, integer dot products, one rounding at the end.

Each row of a and each column of b is aligned to a power of two 2^E above its largest entry and cut into
slices of integers of 10 bits: x = 2^(E - 9) (s_0 + s_1 2^-10 + s_2 2^-20 + ...), |s_i| <= 2^9. Sums of 64
products of such integers are at most 2^24, so float32 dot products give them exactly in any order. They are
carried in int32, digit by digit, and rounded to float32 once.
"""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.formats import Format
from simlab.formats.scale_rules import flush

SLICE_BITS = 10
TERMS = 64  # 64 * (2^9)^2 = 2^24
MAX_TERMS = 127 * TERMS  # the leading digit grows by at most 2^24 per 64 terms, within int32
DEFAULT_SLICES = 3
MIN_EXPONENT, MAX_EXPONENT = -110, 128


def exact_dot(
    a: Float[AnyArray, "M K"], b: Float[AnyArray, "K N"], slices: int = DEFAULT_SLICES
) -> Float[Array, "M N"]:
    """Return the product of float32 a [M, K] and b [K, N], each sum rounded once; float32 [M, N].

    An entry of a row with maximum below 2^E is first rounded to a multiple of 2^(E - 10 slices + 1), E - 29
    by default; the same for columns of b. So the result is the correctly rounded exact sum if no entry has
    bits below that, and otherwise has an error of at most 2^(E_a + E_b - 10 slices + 1) K more. BF16 entries
    of at least 2^-21 of the largest one are exact, FP16 ones of 2^-18, and with two slices all of E4M3.
    The bits depend on the row of a and the column of b alone, not on their order. A row or column with an
    infinity or NaN gives NaN; results below 2^-126 are zeros. K is at most `MAX_TERMS`, unchecked here.
    """
    a_slices, a_exponent = _slice(a, 1, slices)
    b_slices, b_exponent = _slice(b, 0, slices)
    digits = _digits(a_slices, b_slices)
    value, exponent = _leading_bits(digits)
    exponent = exponent + a_exponent + b_exponent - 2 * (SLICE_BITS - 1)
    finite = jnp.isfinite(_largest(a, 1)) & jnp.isfinite(_largest(b, 0))
    return jnp.where(finite, _scale(value, exponent), jnp.float32(jnp.nan))


def slices_for(fmt: Format) -> int:
    """Return the number of slices with which every value of `fmt` is exact: at most 5 in the catalog.

    `DEFAULT_SLICES` for formats of float32's exponent range, where no number of slices is enough.
    """
    if int(fmt.min_exponent) <= -126:
        return DEFAULT_SLICES
    top = int(jnp.frexp(jnp.maximum(jnp.abs(fmt.max_finite), jnp.abs(fmt.min_finite)))[1])
    lowest = int(fmt.min_exponent) - int(fmt.mantissa_bits)
    return -(-(top - lowest + 1) // SLICE_BITS)


def _largest(x: Array, axis: int) -> Array:
    return jnp.max(jnp.abs(x), axis=axis, keepdims=True, initial=0)


def _slice(x: Array, axis: int, slices: int) -> tuple[Array, Array]:
    """Cut x into integers of 10 bits, [slices, *x.shape], below exponents of its rows or columns."""
    bits = lax.bitcast_convert_type(_largest(x, axis), jnp.int32)
    exponent = jnp.clip((bits >> 23) - 126, MIN_EXPONENT, MAX_EXPONENT)
    rest = x * _power_of_two(SLICE_BITS - 1 - exponent)
    digits = []
    for _ in range(slices):
        digits.append(jnp.round(rest))
        rest = (rest - digits[-1]) * jnp.float32(2**SLICE_BITS)
    return jnp.stack(digits), exponent


def _digits(a: Array, b: Array) -> list[Array]:
    """Return int32 digits [M, N], the leading one signed, each other one in 0..2^10 - 1 and worth 2^-10 more.

    a is [slices, M, K], b [slices, K, N].
    """
    slices, rows, terms = a.shape
    columns = b.shape[2]
    block = min(TERMS, max(terms, 1))
    blocks = max(-(-terms // block), 1)
    # Digits grow by at most slices * 2^24 per block: so many blocks fit int32 before they are carried.
    run = min(blocks, 127 // slices)
    pad = -(-blocks // run) * run * block - terms
    a = jnp.pad(a, ((0, 0), (0, 0), (0, pad))).reshape(slices * rows, -1, run, block).transpose(1, 2, 0, 3)
    b = jnp.pad(b, ((0, 0), (0, pad), (0, 0))).transpose(1, 0, 2).reshape(-1, run, block, slices * columns)

    def add_block(digits: list[Array], operands: tuple[Array, Array]) -> tuple[list[Array], None]:
        products = jnp.matmul(*operands, precision=lax.Precision.HIGHEST).astype(jnp.int32)
        products = products.reshape(slices, rows, slices, columns)
        for i in range(slices):
            for j in range(slices):
                digits[i + j] = digits[i + j] + products[i, :, j]
        return digits, None

    def add_run(digits: list[Array], operands: tuple[Array, Array]) -> tuple[list[Array], None]:
        sums = lax.scan(add_block, zeros, operands)[0]
        return _carry([digit + more for digit, more in zip(digits, sums, strict=True)]), None

    zeros = [jnp.zeros((rows, columns), jnp.int32) for _ in range(2 * slices - 1)]
    return lax.scan(add_run, zeros, (a, b))[0]


def _carry(digits: list[Array]) -> list[Array]:
    """Bring every digit but the first one into 0..2^10 - 1."""
    digits = list(digits)
    for i in range(len(digits) - 1, 0, -1):
        digits[i - 1] = digits[i - 1] + (digits[i] >> SLICE_BITS)
        digits[i] = digits[i] & (2**SLICE_BITS - 1)
    return digits


def _leading_bits(digits: list[Array]) -> tuple[Array, Array]:
    """Return (value, exponent) with value * 2^exponent the float32 nearest to the digits.

    The leading 31 bits become an integer, with everything below them as a sticky last bit, so that its
    conversion to float32, to nearest even, is the only rounding.
    """
    negative = digits[0] < 0
    head, *tail = _carry([jnp.where(negative, -digit, digit) for digit in digits])
    zero = jnp.zeros_like(head)
    exponent = zero
    for _ in range(len(tail)):
        room = head < 2 ** (31 - SLICE_BITS)
        head = jnp.where(room, (head << SLICE_BITS) | tail[0], head)
        exponent = exponent - jnp.where(room, SLICE_BITS, 0)
        tail = [jnp.where(room, after, now) for now, after in zip(tail, [*tail[1:], zero], strict=True)]
    next_digit, *rest = [*tail, zero]
    free = jnp.minimum(lax.clz(head) - 1, SLICE_BITS)
    head = (head << free) | (next_digit >> (SLICE_BITS - free))
    below = next_digit & ((1 << (SLICE_BITS - free)) - 1)
    for digit in rest:
        below = below | digit
    value = (head | (below != 0).astype(jnp.int32)).astype(jnp.float32)
    return jnp.where(negative, -value, value), exponent - free


def _scale(value: Array, exponent: Array) -> Array:
    """Return value * 2^exponent for |value| <= 2^31, zero below 2^-126."""
    exponent = jnp.clip(exponent, -252, 254)
    half = exponent >> 1
    return flush(value * _power_of_two(half) * _power_of_two(exponent - half))


def _power_of_two(exponent: Array) -> Array:
    return lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)
