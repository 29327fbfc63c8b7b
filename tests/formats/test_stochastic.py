"""Stochastic rounding: exact given its random words, and the words are good."""

import gfloat
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from simlab.formats.catalog import FORMATS
from simlab.formats.counter_hash import random_words
from simlab.formats.rounding import round_to_format
from tests.formats.strategies import all_bfloat16, edge_values, random_bit_patterns
from tests.formats.test_rounding import GFLOAT, on_device
from tests.oracles.rounding_ref import round_ref
from tests.tolerances import assert_exact, assert_within_interval, binomial_interval, normal_interval

# Each interval of this file is left by a correct program with this probability; there are about 2000 of them
# and the keys are fixed, so a failure means a changed program.
FALSE_ALARM = 1e-7
COUNT = 2**20
KEY = jax.random.key(20)
# Upper bits of a word that are random; those below come out of the last product too regular to use.
WORD_BITS = 23


def words(key, count: int = COUNT) -> np.ndarray:
    return np.asarray(jax.jit(random_words, static_argnums=1)(key, (count,)))


def stochastic(x, name: str, key, overflow: str = "saturate") -> np.ndarray:
    return np.asarray(round_to_format(jnp.asarray(x), on_device(FORMATS[name]), "stochastic", overflow, key))


# Exactness


@pytest.mark.parametrize("name", GFLOAT)
def test_equals_gfloat_given_the_same_words(name):
    x = np.concatenate(
        [all_bfloat16(), edge_values(FORMATS[name], per_binade=64), random_bit_patterns(2**16, 9)]
    )
    x = np.resize(x, 2**18)
    if name == "e8m0":
        x = np.where((x >= np.float32(2.0**-126)) & np.isfinite(x), x, np.float32(1.5))
    dropped = 23 - int(FORMATS[name].mantissa_bits)
    drawn = (words(KEY, x.size) >> (32 - dropped)).astype(np.int64)
    expected = gfloat.round_ndarray(
        GFLOAT[name], x.astype(np.float64), gfloat.RoundMode.Stochastic, True, drawn, dropped
    )
    assert_exact(stochastic(x, name, KEY), expected.astype(np.float32))


@pytest.mark.parametrize("name", FORMATS)
def test_equals_the_oracle_given_the_same_words(name):
    edges = edge_values(FORMATS[name], per_binade=32)
    x = np.random.default_rng(10).choice(edges, 512)
    for overflow in ("saturate", "format"):
        expected = [
            round_ref(value, FORMATS[name], "stochastic", overflow, int(word))
            for value, word in zip(x, words(KEY, x.size), strict=True)
        ]
        assert_exact(stochastic(x, name, KEY, overflow), np.array(expected))


@pytest.mark.parametrize("name", ["bf16", "e4m3fn", "int8"])
def test_static_traced_and_mapped_agree(name):
    x = edge_values(FORMATS["e4m3fn"])
    keys = jax.random.split(KEY, 3)
    static = jax.jit(lambda x, key: round_to_format(x, FORMATS[name], "stochastic", key=key))
    mapped = jax.jit(jax.vmap(static, (None, 0)))(x, keys)
    for i in range(3):
        assert_exact(np.asarray(static(x, keys[i])), stochastic(x, name, keys[i]))
        assert_exact(np.asarray(mapped[i]), stochastic(x, name, keys[i]))


def test_shape_does_not_matter_and_raw_keys_work():
    x = np.linspace(-3, 3, 24, dtype=np.float32)
    flat = stochastic(x, "e2m1", KEY)
    assert_exact(stochastic(x.reshape(2, 3, 4), "e2m1", KEY).ravel(), flat)
    assert_exact(stochastic(x, "e2m1", jax.random.key_data(KEY)), flat)
    assert stochastic(np.float32(0.75), "e2m1", KEY).shape == ()


def test_same_key_same_bits_other_key_other_bits():
    first = words(jax.random.key(0))
    assert_exact(words(jax.random.key(0)), first)
    other = words(jax.random.key(1))
    same = int((first >> (32 - WORD_BITS) == other >> (32 - WORD_BITS)).sum())
    assert same <= stats.poisson.isf(FALSE_ALARM, COUNT / 2**WORD_BITS)


# Unbiasedness


@pytest.mark.parametrize("name", ["bf16", "e4m3fn", "e2m1", "int8"])
def test_every_value_is_rounded_up_as_often_as_its_fraction_asks(name):
    fmt = FORMATS[name]
    quantum = 2.0 ** (max(0, int(fmt.min_exponent)) - int(fmt.mantissa_bits))
    lows = np.array([1.0, -1.0, 0.0, 1 + quantum, -(1 + quantum)])
    fractions = np.array([1 / 64, 0.25, 0.5, 0.7, 63 / 64])
    draws = 2**15
    signs = np.where(np.signbit(lows), -1.0, 1.0)
    # Below 1 the grid is finer for those whose 1 is not subnormal, so start with 1 for these.
    lows = np.where((lows == 0) & (int(fmt.min_exponent) < 0), 1.0, lows)
    x = (lows[:, None] + signs[:, None] * quantum * fractions).astype(np.float32)
    rounded = stochastic(np.broadcast_to(x[..., None], (*x.shape, draws)), name, KEY)
    up = np.abs(rounded) > np.abs(lows)[:, None, None].astype(np.float32)
    actual_fraction = (np.abs(x.astype(np.float64)) - np.abs(lows)[:, None]) / quantum
    for count, fraction in zip(up.sum(-1).ravel(), actual_fraction.ravel(), strict=True):
        low, high = binomial_interval(draws, fraction, FALSE_ALARM)
        assert_within_interval(count, low, high, FALSE_ALARM)


def test_the_mean_over_many_values_is_unbiased():
    x = np.random.default_rng(11).normal(size=COUNT).astype(np.float32)
    error = stochastic(x, "e4m3fn", KEY).astype(np.float64) - x
    low, high = normal_interval(COUNT, 0.0, float(error.std()), FALSE_ALARM)
    assert_within_interval(float(error.mean()), low, high, FALSE_ALARM)


# Quality of the words


def uniform_test(values: np.ndarray, cells: int) -> None:
    """Chi-squared test that integers in [0, cells) are equally frequent."""
    counts = np.bincount(values.ravel(), minlength=cells)
    expected = values.size / cells
    statistic = float(((counts - expected) ** 2 / expected).sum())
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], cells - 1)
    assert_within_interval(statistic, low, high, FALSE_ALARM)


def bits_of(values: np.ndarray) -> np.ndarray:
    """The random bits of each word, the upper ones, as a matrix of 0 and 1."""
    return (values[:, None] >> np.arange(32 - WORD_BITS, 32, dtype=np.uint32)) & np.uint32(1)


def balanced_bits(values: np.ndarray) -> None:
    """Every bit is one half of the time."""
    low, high = binomial_interval(values.size, 0.5, FALSE_ALARM)
    for ones in bits_of(values).sum(0):
        assert_within_interval(int(ones), low, high, FALSE_ALARM)


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_words_are_uniform(seed):
    drawn = words(jax.random.key(seed))
    balanced_bits(drawn)
    for shift in (9, 16, 24):
        uniform_test((drawn >> shift) & 0xFF, 256)
    # All pairs of bits are independent: the XOR of two is balanced.
    bits = bits_of(drawn).astype(bool)
    low, high = binomial_interval(COUNT, 0.5, FALSE_ALARM)
    for i in range(WORD_BITS):
        for ones in (bits[:, i : i + 1] ^ bits[:, i + 1 :]).sum(0):
            assert_within_interval(int(ones), low, high, FALSE_ALARM)


@pytest.mark.parametrize("lag", [1, 2, 3, 32, 1024, 4096, 2**16])
def test_neighboring_counters_are_independent(lag):
    drawn = words(KEY)
    balanced_bits(drawn[lag:] ^ drawn[:-lag])
    # Upper four bits of both: 256 equally frequent pairs. Every second pair, so that none shares a word.
    pairs = ((drawn[lag:] >> 28) << 4 | drawn[:-lag] >> 28).reshape(-1)
    independent = np.arange(pairs.size) // lag % 2 == 0
    uniform_test(pairs[independent], 256)


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 2), (0, 2**31), (7, 7 ^ 2**16)])
def test_neighboring_keys_are_independent(first, second):
    a, b = words(jax.random.key(first)), words(jax.random.key(second))
    balanced_bits(a ^ b)
    uniform_test((a >> 28) << 4 | b >> 28, 256)


def test_keys_are_independent_at_one_counter():
    keys = jax.random.split(KEY, 2**16)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: random_words(key, (2,))))(keys))
    for column in drawn.T:
        balanced_bits(column)
        uniform_test(column >> 24, 256)
    balanced_bits(drawn[:, 0] ^ drawn[:, 1])
