"""Energy by token frequency, and jitter."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.metrics import energy_by_frequency, jitter2

# Types 7, 3, 1 occur 4, 2, 2 times among 8 tokens.
IDS = np.array([[7, 7, 3, 1], [7, 3, 1, 7]])
COEFFICIENTS = np.float32([[1, -1, 4, 2], [-3, 0, 0, 5]])
EVERYWHERE = np.ones(IDS.shape, bool)


def test_each_type_goes_to_the_bucket_of_its_first_occurrence():
    # By frequency: 7 at positions 0-3, 1 at 4-5, 3 at 6-7 (ties by id), in two halves.
    shares = energy_by_frequency(COEFFICIENTS, IDS, EVERYWHERE, vocabulary=10, buckets=2)
    np.testing.assert_array_equal(shares, np.float32([10 / 16, 6 / 16]))
    quarters = energy_by_frequency(COEFFICIENTS, IDS, EVERYWHERE, vocabulary=10, buckets=4)
    np.testing.assert_array_equal(quarters, np.float32([10 / 16, 0, 2 / 16, 4 / 16]))


def test_score_norms_weigh_the_tokens():
    norms = np.where(IDS == 7, 0, 1).astype(np.float32)
    shares = energy_by_frequency(COEFFICIENTS, IDS, EVERYWHERE, 10, buckets=2, score_norms=norms)
    np.testing.assert_array_equal(shares, np.float32([0, 1]))


@given(st.integers(0, 2**32 - 1), st.sampled_from([-1, 0, 10**6]))
def test_shares_sum_to_one_and_padding_is_never_read(seed, garbage):
    rng = np.random.default_rng(seed)
    mask = rng.random(IDS.shape) < 0.7
    mask[0, 0] = True
    ids, coefficients = rng.integers(0, 10, IDS.shape), rng.normal(size=IDS.shape).astype(np.float32)
    shares = np.asarray(energy_by_frequency(coefficients, ids, mask, vocabulary=10))
    assert shares.sum() == pytest.approx(1, abs=8 * 2.0**-23)
    spoiled = np.where(mask, coefficients, np.float32(np.nan)), np.where(mask, ids, garbage)
    np.testing.assert_array_equal(energy_by_frequency(*spoiled, mask, vocabulary=10), shares)


def test_jitter_is_the_mean_absolute_second_difference():
    steps = np.arange(6, dtype=np.float32)
    assert jitter2(3 * steps + 1) == 0
    assert jitter2(2 * steps**2) == 4
    assert jitter2(np.float32([0, 1, 0, 1])) == 2
    assert np.isnan(jitter2(steps[:2]))
