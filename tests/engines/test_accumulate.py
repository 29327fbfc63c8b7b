from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import ACCUMULATORS, PartialSums, Site, matmul
from simlab.engines.accumulate import dot_in_tiles
from simlab.formats import FORMATS, ROUNDINGS, stack
from tests.engines.operands import batches, normal
from tests.oracles.matmul_ref import matmul_ref, partial_sums_ref
from tests.oracles.rounding_ref import round_ref
from tests.tolerances import assert_exact

# Every accumulator but the device's own promises the same bits for any batch; `dot` inside a block keeps it
# on this CPU alone, by whole tiles.
SHAPE_FREE = [name for name in ACCUMULATORS if name != "float32" and not name.startswith("fp16")]


def rounded_to(fmt, rounding="nearest_even"):
    if fmt is None:
        return lambda x: x
    return lambda x: round_ref(x, FORMATS[fmt], rounding, "format")


@pytest.mark.parametrize(
    ("fmt", "rounding", "block", "order", "splits"),
    [
        ("bf16", "nearest_even", 32, "sequential", 1),
        ("bf16", "toward_zero", 8, "sequential", 1),
        ("fp16", "nearest_even", 16, "pairwise", 1),
        ("bf16", "nearest_even", 3, "pairwise", 1),
        ("bf16", "nearest_even", 1, "split-k", 4),
        ("e5m2", "up", 1, "split-k", 7),
        (None, "nearest_even", 5, "sequential", 1),
        (None, "nearest_even", 16, "pairwise", 1),
    ],
)
def test_ordered_sums_equal_the_scalar_oracle(fmt, rounding, block, order, splits):
    a, b = normal((4, 75), 0), normal((75, 5), 1)
    site = Site() if fmt is None else Site.of(fmt, rounding, "format")
    accumulator = PartialSums(site, block, order, splits, inside="ordered")
    actual = matmul(jnp.asarray(a), jnp.asarray(b), accumulator=accumulator)
    oracle = partial(
        partial_sums_ref, rounded=rounded_to(fmt, rounding), block=block, order=order, splits=splits
    )
    assert_exact(actual, matmul_ref(a, b, oracle))


@pytest.mark.parametrize("order", ["sequential", "pairwise", "split-k"])
def test_sums_inside_a_block_by_dot_stay_within_their_error(order):
    """Only the float32 sums inside blocks may differ from the oracle's, before the result is rounded."""
    a, b = normal((16, 96), 2), normal((96, 24), 3)
    accumulator = PartialSums(Site.of("bf16"), 32, order, 3, inside="dot")
    actual = np.asarray(matmul(jnp.asarray(a), jnp.asarray(b), accumulator=accumulator))
    reference = a.astype(np.float64) @ b.astype(np.float64)
    absolute = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    # Three blocks: at most three roundings of partials and three of sums, each 2^-8 of the sum of magnitudes,
    # and 97 float32 additions of 2^-24.
    assert (np.abs(actual - reference) <= absolute * (6 * 2.0**-8 * 1.02 + 97 * 2.0**-24)).all()


QUICK = ("exact", "bf16-pairwise-32-ordered")
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SHAPE_FREE]


@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_the_batch(name):
    rows, terms, columns = 41, 70, 17
    a, b = jnp.asarray(normal((rows, terms), 4)), jnp.asarray(normal((terms, columns), 5))
    multiply = jax.jit(partial(matmul, accumulator=name))
    whole = np.asarray(multiply(a, b))
    for part in batches(rows):
        assert_exact(multiply(a[part], b), whole[part])
    assert_exact(jax.vmap(lambda row: multiply(row, b))(a), whole)


def test_tiles_make_product_independent_of_batch():
    """The measurement behind `inside="dot"`; on another device it may fail, and only that promise with it."""
    rng = np.random.default_rng(6)
    product = jax.jit(dot_in_tiles)
    for rows, columns in ((40, 48), (33, 17), (100, 130), (256, 1)):
        a = rng.standard_normal((rows, 32)).astype(np.float32)
        b = rng.standard_normal((32, columns)).astype(np.float32)
        whole = np.asarray(product(a, b))
        for part in batches(rows):
            assert_exact(product(a[part], b), whole[part])


@pytest.mark.parametrize("name", ["bf16-partial-32-ordered", "bf16-pairwise-32-ordered", "float32-ordered"])
def test_zeros_at_the_end_change_nothing(name):
    a, b = normal((3, 40), 7), normal((40, 5), 8)
    longer = np.concatenate([a, np.zeros((3, 60), np.float32)], 1)
    garbage = np.concatenate([b, normal((60, 5), 9)])
    expected = matmul(jnp.asarray(a), jnp.asarray(b), accumulator=name)
    assert_exact(matmul(jnp.asarray(longer), jnp.asarray(garbage), accumulator=name), np.asarray(expected))


def test_formats_and_roundings_of_partial_sums_are_data():
    a, b = jnp.asarray(normal((6, 64), 10)), jnp.asarray(normal((64, 8), 11))
    records = [
        PartialSums(Site.of(fmt, rounding, "format"), 16, inside="ordered")
        for fmt in ("bf16", "fp16", "e5m2", "fp32")
        for rounding in ("nearest_even", "toward_zero")
    ]
    compiled = []

    @jax.jit
    def multiply(accumulator):
        compiled.append(1)
        return matmul(a, b, accumulator=accumulator)

    together = jax.jit(jax.vmap(multiply))(stack(records))
    for record, expected in zip(records, together, strict=True):
        assert_exact(multiply(record), np.asarray(expected))
    assert len(compiled) == 1


def test_partial_sums_lose_accuracy_with_more_roundings():
    a, b = normal((32, 256), 12), normal((256, 32), 13)
    reference = a.astype(np.float64) @ b.astype(np.float64)

    def error(block):
        accumulator = PartialSums(Site.of("bf16"), block, inside="ordered")
        actual = np.asarray(matmul(jnp.asarray(a), jnp.asarray(b), accumulator=accumulator))
        return np.sqrt(np.mean((actual - reference) ** 2))

    # A random walk: 16 times as many roundings make 4 times the error; 2 is far from noise (n = 1024).
    assert error(16) > 2 * error(256)


@pytest.mark.parametrize(
    "bad", [{"order": "reverse"}, {"inside": "exact"}, {"block": 0}, {"order": "split-k", "splits": 0}]
)
def test_bad_declarations_name_what_is_allowed(bad):
    with pytest.raises(ValueError, match="allowed"):
        PartialSums(Site(), **bad)


def test_stochastic_rounding_rejects_missing_key():
    accumulator = PartialSums(Site(FORMATS["bf16"], ROUNDINGS["stochastic"], np.bool_(True)))
    with pytest.raises(ValueError, match="key"):
        matmul(jnp.ones((2, 4)), jnp.ones((4, 2)), accumulator=accumulator)
