"""The spread of a rounded softmax from first principles, against rounding it."""

import numpy as np
import pytest

from simlab.theory import rounding_error as rounding
from simlab.theory.expectation import softmax


def logits(rows=200, vocabulary=1024):
    return np.random.default_rng(0).normal(scale=1.5, size=(rows, vocabulary))


@pytest.mark.parametrize(("fmt", "bits"), [("bf16", 7), ("fp16", 10), ("e4m3fn", 3), ("e5m2", 2)])
@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero"])
def test_predicted_spread(fmt, bits, mode):
    # Logits alone, so that no probability underflows. Uniform errors within one ulp: good to a tenth.
    z = logits()
    measured = rounding.measure_rho_std(z, rounding.round_softmax(z, fmt, mode, ("logits",)))
    predicted = rounding.predict_rho_std(z, bits, mode, ("logits",))
    assert predicted == pytest.approx(measured, rel=0.1)


def test_the_paper_table():
    z = np.random.default_rng(1).normal(scale=1.5, size=(50, 2048))
    printed = rounding.round_softmax(z, "bf16")
    assert rounding.measure_rho_std(z, printed) == pytest.approx(0.0048, abs=1e-4)
    assert rounding.predict_rho_std(z, 7) == pytest.approx(0.0048, abs=1e-4)


def test_spread_halves_with_each_mantissa_bit():
    z = logits(20)
    spreads = [rounding.predict_rho_std(z, bits) for bits in (3, 4, 7)]
    assert spreads[0] / spreads[1] == pytest.approx(2, rel=1e-12)
    assert spreads[1] / spreads[2] == pytest.approx(8, rel=1e-12)


def test_variance_token_by_token():
    # One row, 4000 shifts of its logits that leave the exponents alone: averages over the fractions.
    rng = np.random.default_rng(0)
    base = rng.uniform(1.0, 2.0, size=12) * rng.choice([0.25, 1.0, 4.0], size=12)
    draws = np.stack([2.0 ** np.floor(np.log2(base)) * rng.uniform(1.0, 2.0, size=12) for _ in range(4000)])
    printed = rounding.round_softmax(draws, "bf16", sites=("logits",))
    measured = np.log(printed / softmax(draws))
    mean, variance = rounding.log_ratio_moments(draws, 7, sites=("logits",))
    assert (mean == 0).all()
    # Variance of 4000 nearly uniform errors, and of softmax weights that vary: within 10%.
    np.testing.assert_allclose(measured.var(0), variance.mean(0), rtol=0.1)


def test_ulp():
    values = np.array([1.0, 1.99, 2.0, -3.0, 0.3])
    np.testing.assert_array_equal(rounding.ulp(values, 7), 2.0 ** (np.array([0, 0, 1, 1, -2]) - 7))


def test_bad_input():
    with pytest.raises(ValueError, match="nearest_even or toward_zero"):
        rounding.log_ratio_moments(logits(2), 7, "up")
    with pytest.raises(ValueError, match="rounds to zero everywhere"):
        rounding.normalize_rows(np.zeros((1, 3)))
    with pytest.raises(ValueError, match="vocabulary >= 2"):
        rounding.gaussian_rho_std("bf16", vocabulary=1)
