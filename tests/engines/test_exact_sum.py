import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simlab.engines import matmul
from simlab.engines.exact_sum import MAX_TERMS, exact_dot, slices_for
from simlab.formats import FORMATS
from tests.engines.operands import any_bits, batches, normal
from tests.oracles.matmul_ref import exact_ref, matmul_ref, nearest_float32
from tests.tolerances import assert_exact


def exact(a, b, fmt=None):
    return np.asarray(matmul(jnp.asarray(a), jnp.asarray(b), accumulator="exact", format=fmt))


@pytest.mark.parametrize("fmt", ["e4m3fn", "e5m2", "fp16", "e2m1", "int8"])
@pytest.mark.parametrize("terms", [1, 65])
def test_every_value_of_a_named_format_is_summed_exactly(fmt, terms):
    a, b = any_bits((5, terms), 0, fmt), any_bits((terms, 6), 1, fmt)
    assert_exact(exact(a, b, fmt), matmul_ref(a, b, exact_ref))


@pytest.mark.parametrize("terms", [3, 64, 200])
def test_bf16_product_rounds_correctly_when_terms_cancel(terms):
    a, b = normal((6, terms), 2, spread=3), normal((terms, 7), 3, spread=3)
    half = terms // 2
    a[:, half : 2 * half] = a[:, :half]
    b[half : 2 * half, ::2] = -b[:half, ::2]
    b[0, 2] *= 1 + 2**-7  # all but one product cancel
    assert_exact(exact(a, b), matmul_ref(a, b, exact_ref))


@given(st.integers(-(2**30), 2**30), st.integers(-(2**30), 2**30), st.integers(0, 40))
@example(2**24 + 1, 0, 0)  # a tie: to even
@example(2**24 + 3, 0, 0)
@example(2**24 + 1, 1, 40)  # a tie but for a sticky bit far below
@example(2**24 + 1, -1, 40)
@example(1, -1, 0)
def test_one_rounding_to_nearest_even(high, low, distance):
    """high + low 2^-distance from products of 16-bit pieces, against fractions."""
    pieces = []
    for number, weight in ((high, 1.0), (low, 2.0**-distance)):
        for shift in (0, 8, 16, 24):
            pieces.append((np.sign(number) * ((abs(number) >> shift) & 255), 2.0**shift * weight))
    # Few binades per operand: powers of two are split over both sides.
    a = np.array([[digit * 2.0 ** (np.log2(scale) // 2) for digit, scale in pieces]], np.float32)
    b = np.array([[2.0 ** (np.log2(scale) - np.log2(scale) // 2)] for _, scale in pieces], np.float32)
    assert_exact(jax.jit(exact_dot, static_argnums=2)(a, b, 5), matmul_ref(a, b, exact_ref))


def test_bits_depend_on_neither_batch_nor_order():
    a, b = normal((33, 70), 4, "fp16", spread=8), normal((70, 9), 5, "fp16", spread=8)
    whole = exact(a, b)
    order = np.random.default_rng(0).permutation(70)
    assert_exact(exact(a[:, order], b[order]), whole)
    for part in batches(33):
        assert_exact(exact(a[part], b), whole[part])
    one_by_one = jax.jit(jax.vmap(lambda row: exact_dot(row[None], b)[0]))
    assert_exact(one_by_one(jnp.asarray(a)), whole)


def test_many_blocks_carry_into_the_leading_digit():
    """The largest sums there are: the leading digit comes within 1% of int32's end."""
    a = np.full((1, MAX_TERMS), 511, np.float32)
    a[0, ::3] = 509
    assert_exact(exact(a, a.T), matmul_ref(a, a.T, exact_ref))
    assert_exact(exact(a, -a.T), -matmul_ref(a, a.T, exact_ref))


def test_wide_operands_err_by_no_more_than_stated():
    a, b = normal((8, 40), 6, spread=0), normal((40, 8), 7, spread=0)
    rng = np.random.default_rng(8)
    a = a + rng.standard_normal(a.shape).astype(np.float32) * np.float32(2**-9)  # 24-bit operands
    reference = a.astype(np.float64) @ b.astype(np.float64)
    row = 2.0 ** np.frexp(np.abs(a).max(1, keepdims=True))[1]
    column = 2.0 ** np.frexp(np.abs(b).max(0, keepdims=True))[1]
    # One rounding to float32, and 2^(E_a + E_b - 29) K for the bits cut off.
    bound = np.abs(reference) * 2.0**-24 + row * column * 2.0**-29 * 40
    assert (np.abs(exact(a, b) - reference) <= bound).all()


def test_specials():
    a = np.array([[1, np.inf], [1, np.nan], [1, 2], [0, 0]], np.float32)
    b = np.array([[1, 3e38], [2, 3e38]], np.float32)
    assert_exact(exact(a, b), np.array([[np.nan] * 2] * 2 + [[5, np.inf], [0, 0]], np.float32))
    tiny = np.array([[2.0**-80]], np.float32)
    assert exact(tiny, tiny) == 0
    assert exact(tiny, np.array([[2.0**-40]], np.float32)) == np.float32(2.0**-120)
    assert exact(tiny, np.array([[2.0**100]], np.float32)) == np.float32(2.0**20)


def test_too_many_terms_are_refused():
    with pytest.raises(ValueError, match="at most 8128"):
        exact(np.ones((1, MAX_TERMS + 1), np.float32), np.ones((MAX_TERMS + 1, 1), np.float32))


@pytest.mark.parametrize(
    ("fmt", "slices"), [("int8", 1), ("e2m1", 1), ("e4m3fn", 2), ("e5m2", 4), ("fp16", 5), ("bf16", 3)]
)
def test_slices_cover_the_format(fmt, slices):
    # 9 bits in the first slice and 10 in each other one, from the largest magnitude to the lowest quantum
    assert slices_for(FORMATS[fmt]) == slices


def test_oracle_rounds_fractions_as_numpy_rounds_float64():
    x = np.random.default_rng(9).standard_normal(200) * 2.0 ** np.arange(-100, 100)
    from fractions import Fraction

    assert_exact(np.array([nearest_float32(Fraction(v)) for v in x], np.float32), x.astype(np.float32))
