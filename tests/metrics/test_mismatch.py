"""The metrics against NumPy on one batch, and at the edges."""

from dataclasses import replace

import numpy as np
import pytest

from simlab.metrics import METRICS, WEIGHT_METRICS
from simlab.metrics.mismatch import fraction_rho_above, fraction_rho_below
from simlab.objectives import TokenBatch
from tests.metrics.strategies import SHAPE, measure
from tests.objectives.batches import batch_of, random_batch

# Undefined for one token (a variance of one number) or when a probability does not vary.
SPREADS = {"discrepancy_std", "pcc"}
# The perplexity of a sequence with log-probs around -100 is not a float32.
UNBOUNDED = {"training_ppl", "rollout_ppl", "ppl_ratio"}
PER_BIN = {name for name in METRICS if "_by_" in name}


def oracle(batch: TokenBatch) -> dict[str, float]:
    """The definitions of the papers in float64, sequence by sequence."""
    real = np.asarray(batch.mask)
    train, infer = (np.asarray(x, np.float64) for x in (batch.logp_train, batch.logp_infer))
    log_rho = (train - infer)[real]
    rho, distance = np.exp(log_rho), np.abs(np.exp(train) - np.exp(infer))
    sums = np.array([(train - infer)[i][real[i]].sum() for i in range(len(real)) if real[i].any()])
    return {
        "std_rho": rho.std(),
        "mean_rho": rho.mean(),
        "max_rho": rho.max(),
        "min_rho": rho.min(),
        "max_rho_sequence": np.exp(sums.max()),
        "min_rho_sequence": np.exp(sums.min()),
        "rms_log_rho": np.sqrt((log_rho**2).mean()),
        "fraction_rho_above": (rho > 2).mean(),
        "fraction_rho_below": (rho < 0.5).mean(),
        "discrepancy": np.mean([distance[i][real[i]].mean() for i in range(len(real)) if real[i].any()]),
        "abs_seq_log_ratio": np.abs(sums).mean(),
        "ess_token": rho.mean() ** 2 / (rho**2).mean(),
        "ess_sequence": np.exp(sums).mean() ** 2 / np.exp(2 * sums).mean(),
        "pcc": np.corrcoef(np.exp(train)[real], np.exp(infer)[real])[0, 1],
    }


def ordinary(seed: int = 7) -> TokenBatch:
    """One response of four has no token."""
    batch = random_batch(seed, groups=1, mismatch=0.8)
    return replace(batch, mask=np.asarray(batch.mask) & (np.arange(4) != 1)[:, None])


def test_numpy_agrees():
    measured, expected = measure(ordinary()), oracle(ordinary())
    for name, value in expected.items():
        # At most 20 additions of terms of order one, and exponents that are sums of five.
        assert measured[name] == pytest.approx(value, rel=50 * 2.0**-23), name


def test_no_token_at_all_is_nan_and_counts_are_zero():
    nothing = np.zeros(SHAPE, bool)
    for name, value in measure(replace(ordinary(), mask=nothing)).items():
        assert (value == 0 if name.startswith("tokens") else np.isnan(value)).all(), name
    for name, metric in WEIGHT_METRICS.items():
        assert np.isnan(metric(np.ones(SHAPE, np.float32), nothing)), name


def test_a_single_token():
    mask = np.zeros(SHAPE, bool)
    mask[2, 3] = True
    batch = batch_of(np.zeros(SHAPE), np.zeros(4), log_rho=0.1, mask=mask)
    measured = measure(batch)
    for name in set(METRICS) - PER_BIN:
        assert np.isfinite(measured[name]) == (name not in SPREADS), name
    # pi_train = exp(-1) lies in [0.1, 0.5).
    filled = measured["mean_rho_by_pi_train"]
    assert np.isfinite(filled).tolist() == [False, False, False, True, False, False]
    assert filled[3] == pytest.approx(np.exp(0.1))


def test_log_ratios_of_a_hundred():
    log_rho = np.zeros(SHAPE)
    log_rho[0, :3] = 100, -100, 100
    measured = measure(batch_of(np.zeros(SHAPE), np.zeros(4), log_rho=log_rho, logp_train=-101.0))
    # pi_train does not vary, so it does not correlate.
    for name in set(METRICS) - PER_BIN - UNBOUNDED - {"pcc"}:
        assert np.isfinite(measured[name]), name
    assert measured["max_rho"] == pytest.approx(np.exp(20))
    assert measured["abs_seq_log_ratio"] == 25


def test_bounds_of_the_fractions_are_arguments():
    batch = batch_of(np.zeros((1, 4)), [1], log_rho=np.log([[0.2, 0.6, 1.4, 4]]))
    assert (fraction_rho_above(batch), fraction_rho_below(batch)) == (0.25, 0.25)
    assert (fraction_rho_above(batch, 1.2), fraction_rho_below(batch, 0.1)) == (0.5, 0)


def test_weights():
    weights, mask = np.float32([[2, 0, 9], [1, 9, 9]]), np.float32([[1, 1, 0], [1, 0, 0]])
    expected = {
        "weight_mean": 1,
        "weight_std": np.sqrt(2 / 3),
        "weight_max": 2,
        "weight_min": 0,
        "effective_sample_size": 3 / 5,
        "weight_sequence_mean": 1,
        "weight_sequence_std": 0,
        "weight_sequence_max": 1,
        "weight_sequence_min": 1,
        "weight_sequence_max_deviation": 0,
    }
    assert set(expected) == set(WEIGHT_METRICS)
    for name, value in expected.items():
        assert float(WEIGHT_METRICS[name](weights, mask)) == pytest.approx(value, rel=1e-6), name
    # Nothing weighs anything: there is no sample.
    assert np.isnan(WEIGHT_METRICS["effective_sample_size"](0 * weights, mask))
