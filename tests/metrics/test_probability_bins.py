"""The mismatch at a fixed histogram of probabilities."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.metrics import METRICS, controlled_rms_log_rho
from tests.metrics.strategies import batches, measure

RMS = np.float32([0.5, 0.3, 0.2, 0.1, 0.05, 0.01])
TOKENS = np.float32([10, 20, 30, 40, 50, 60])


def bins(batch):
    measured = measure(batch)
    return [np.float32(measured[name]) for name in ("rms_log_rho_by_pi_train", "tokens_by_pi_train")]


@given(batches())
def test_at_the_reference_it_is_the_plain_one(batch):
    rms, tokens = bins(batch)
    # Roots, squares and a mean of at most 20 tokens, in two orders.
    expected = measure(batch)["rms_log_rho"]
    np.testing.assert_allclose(controlled_rms_log_rho(rms, tokens, tokens), expected, rtol=50 * 2.0**-24)


@given(st.permutations(range(6)))
def test_only_the_bins_matter_not_how_many_tokens_they_have(order):
    moved = controlled_rms_log_rho(RMS, TOKENS[list(order)], TOKENS)
    assert moved == controlled_rms_log_rho(RMS, TOKENS, TOKENS)
    assert controlled_rms_log_rho(2 * RMS, TOKENS, TOKENS) == 2 * moved


def test_the_raw_number_falls_with_entropy_and_this_one_does_not():
    sure = np.float32([1, 2, 3, 4, 5, 195])
    raw = [np.sqrt((n * RMS**2).sum() / n.sum()) for n in (TOKENS, sure)]
    assert raw[1] < 0.5 * raw[0]
    curve = controlled_rms_log_rho(np.stack([RMS, RMS]), np.stack([TOKENS, sure]), TOKENS)
    assert curve.tolist() == pytest.approx([raw[0], raw[0]], rel=1e-6)


def test_empty_bins_are_left_out():
    rms, tokens = RMS.copy(), TOKENS.copy()
    rms[0], tokens[0] = np.nan, 0
    expected = np.sqrt((TOKENS * RMS**2)[1:].sum() / TOKENS[1:].sum())
    assert controlled_rms_log_rho(rms, tokens, TOKENS) == pytest.approx(expected, rel=1e-6)
    assert np.isnan(controlled_rms_log_rho(RMS * np.nan, TOKENS * 0, TOKENS))
    assert "rms_log_rho_by_pi_train" in METRICS
