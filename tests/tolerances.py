"""The three tolerance classes: bits, ulps with a reason, intervals with a false-alarm rate."""

import numpy as np
from scipy import stats


def _float32(values) -> np.ndarray:
    array = np.asarray(values)
    assert array.dtype == np.float32, f"expected float32, got {array.dtype}"
    return array


def assert_exact(actual, expected, nan_payload: bool = False) -> None:
    """Equal bit patterns; any NaN equals any NaN unless `nan_payload`; -0 differs from +0."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shapes differ: {actual.shape}, {expected.shape}"
    assert actual.dtype == expected.dtype, f"types differ: {actual.dtype}, {expected.dtype}"
    actual, expected = np.atleast_1d(actual), np.atleast_1d(expected)
    same = _bits(actual) == _bits(expected)
    if not nan_payload and actual.dtype.kind == "f":
        same |= np.isnan(actual) & np.isnan(expected)
    if not same.all():
        where = tuple(index[:5] for index in np.nonzero(~same))
        raise AssertionError(
            f"{(~same).sum()} of {same.size} differ, first at {where}: "
            f"{actual[~same][:5]} instead of {expected[~same][:5]}"
        )


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "f" else array


def ulp_distance(actual, expected) -> np.ndarray:
    """Number of float32 values between the two (0 when equal; NaN against NaN is 0)."""
    actual, expected = _float32(actual), _float32(expected)

    def ordered(array):
        bits = array.view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    distance = np.abs(ordered(actual) - ordered(expected))
    both_nan = np.isnan(actual) & np.isnan(expected)
    one_nan = np.isnan(actual) ^ np.isnan(expected)
    return np.where(both_nan, 0, np.where(one_nan, np.iinfo(np.int64).max, distance))


def assert_ulp(actual, expected, k: int) -> None:
    """At most `k` float32 values apart; the caller derives `k` in a comment."""
    distance = ulp_distance(actual, expected)
    assert (distance <= k).all(), f"up to {distance.max()} ulp apart, allowed {k}"


def binomial_interval(n: int, p: float, alpha: float) -> tuple[float, float]:
    """Bounds on a count of successes, left with probability <= `alpha` when `p` is true."""
    low, high = stats.binom.ppf([alpha / 2, 1 - alpha / 2], n, p)
    return float(low), float(high)


def normal_interval(n: int, mean: float, std: float, alpha: float) -> tuple[float, float]:
    """Bounds on the average of `n` draws with the given mean and std, by the central limit theorem."""
    half = stats.norm.isf(alpha / 2) * std / np.sqrt(n)
    return mean - half, mean + half


def assert_within_interval(value: float, low: float, high: float, alpha: float) -> None:
    """`low <= value <= high`, an interval that a correct program leaves with probability `alpha`."""
    assert low <= value <= high, f"{value} outside [{low}, {high}] (false-alarm rate {alpha})"
