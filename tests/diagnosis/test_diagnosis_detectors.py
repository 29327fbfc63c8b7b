"""Detectors that need columns of their own, and the metrics of a log."""

from dataclasses import replace

import numpy as np
import pytest

from simlab.diagnosis import sequence_weights
from simlab.diagnosis.catalog import DETECTORS
from simlab.diagnosis.injected_faults import generate_log
from simlab.diagnosis.log import TokenLog
from simlab.diagnosis.log_metrics import measure
from simlab.diagnosis.sequence_weights import OFFERED, gradient_errors
from simlab.metrics import METRICS
from simlab.objectives import TokenBatch
from simlab.theory.budget import budget


@pytest.mark.parametrize(
    ("detector", "column"),
    [("staleness", "version"), ("micro_batches", "logp"), ("routing", "experts_infer")],
)
def test_detector_cannot_tell_without_its_column(detector, column):
    log = replace(generate_log("stale", 0.1, 0), **{column: None})
    answer = DETECTORS[detector][1](log)
    assert answer.verdict == "cannot tell"
    assert answer.confidence == 0
    assert answer.recommendation


def _even(std: float, length: int, sequences: int = 400) -> TokenLog:
    """Return a log with independent log-normal ratios of mean 1."""
    rng = np.random.default_rng(0)
    count, spread = sequences * length, np.sqrt(np.log1p(std**2))
    logs = rng.normal(-(spread**2) / 2, spread, count).astype(np.float32)
    infer = np.full(count, -3.0, np.float32)
    lengths = np.full(sequences, length)
    return TokenLog(lengths, infer + logs, infer, np.ones(count, bool), np.zeros(sequences, np.int64))


# The verdict depends on the ESS fraction: 10% and 50% are the limits.
@pytest.mark.parametrize(
    ("std", "length", "verdict"), [(0.02, 100, "no"), (0.1, 120, "it will cost much"), (0.1, 1000, "yes")]
)
def test_vanishing_matches_budget(std, length, verdict):
    answer = DETECTORS["vanishing"][1](_even(std, length))
    expected = budget(std, length).ess
    assert answer.verdict.startswith(verdict)
    reported = float(answer.verdict.split("leave ")[1].split("%")[0]) / 100
    # Four standard deviations of the variance of 400 sums, a relative sqrt(2/400) of -log ess; two digits.
    assert np.log(reported) == pytest.approx(np.log(expected), rel=4 * np.sqrt(2 / 400), abs=0.06)


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100%"), (0.996, "100%"), (0.123, "12%"), (0.0123, "1.2%"), (1e-9, "under 0.0001%")],
)
def test_fractions_are_plain_percentages(share, text):
    assert sequence_weights._format_fraction(share) == text


def test_correction_has_least_theoretical_error():
    log = _even(0.1, 60)
    answer = DETECTORS["correction"][1](log)
    errors = gradient_errors(round(0.6, 2), 50)
    assert min(errors, key=lambda name: errors[name]).startswith("sequence")
    assert answer.verdict in (OFFERED["sequence TIS"], OFFERED["sequence MIS"])
    assert DETECTORS["correction"][1](_even(0.1, 1000)).verdict.startswith(OFFERED["token TIS"])
    assert DETECTORS["correction"][1](_even(0.001, 20)).verdict == OFFERED["none"]


def test_log_metrics_equal_simlab_metrics():
    log = generate_log("stale", 0.1, 5, sequences=12, length=9)
    rng = np.random.default_rng(0)
    log = replace(log, mask=rng.random(len(log.mask)) < 0.8)
    table = np.arange(log.lengths.max()) < log.lengths[:, None]

    def padded(values):
        rows = np.zeros(table.shape, values.dtype)
        rows[table] = values
        return rows

    batch = TokenBatch(
        logp=padded(log.logp_train),
        logp_train=padded(log.logp_train),
        logp_infer=padded(log.logp_infer),
        rewards=np.zeros(log.num_sequences, np.float32),
        mask=padded(log.mask),
        group_size=1,
    )
    measured = measure(log.drop_masked())
    assert measured.keys() == METRICS.keys()
    for name, metric in METRICS.items():
        # float32 sums over about 60 tokens, each within a few roundings, of ratios up to e^3.
        np.testing.assert_allclose(
            measured[name], np.asarray(metric(batch)), rtol=2e-4, atol=2e-6, err_msg=name
        )
