"""The noise scale: unbiased parts on gradients of known mean and covariance, and its edges."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simlab.metrics import gradient_noise
from tests.tolerances import assert_within_interval, normal_interval

DRAWS, UNITS, DIMENSION = 4000, 6, 5
MEAN = np.linspace(-0.4, 0.6, DIMENSION)
SPREAD = np.linspace(0.5, 1.5, DIMENSION)


def test_signal_and_noise_are_unbiased():
    rng = np.random.default_rng(0)
    gradients = MEAN + SPREAD * rng.standard_normal((DRAWS, UNITS, DIMENSION))
    small = (gradients**2).sum(-1).mean(-1).astype(np.float32)
    big = (gradients.mean(1) ** 2).sum(-1).astype(np.float32)
    measured = gradient_noise(small, big, 1, UNITS)
    for values, true in ((measured.signal, (MEAN**2).sum()), (measured.noise, (SPREAD**2).sum())):
        values = np.asarray(values, np.float64)
        # The spread of one draw from the sample itself: its error is 1% at 4000 draws.
        interval = normal_interval(DRAWS, true, 1.05 * values.std(), 1e-6)
        assert_within_interval(values.mean(), *interval, alpha=1e-6)


@given(st.floats(0, 100, width=32), st.floats(0, 100, width=32), st.integers(1, 8), st.integers(1, 8))
def test_both_batches_are_explained_exactly(signal, noise, small, more):
    """|gradient|^2 at batch size b is signal + noise / b: from two sizes both come back."""
    big = small + more
    squares = [np.float32(signal + noise / size) for size in (small, big)]
    measured = gradient_noise(*squares, small, big)
    # Two inputs of relative error 2^-24, their differences magnified by big / (big - small) <= 9 and by big.
    error = 8 * 16 * (signal + noise) * 2.0**-24 + 1e-30
    assert abs(measured.signal - signal) <= error
    assert abs(measured.noise - noise) <= 9 * error


def test_one_size_measures_nothing():
    assert np.isnan(gradient_noise(np.float32(1), np.float32(1), 4, 4).scale)
