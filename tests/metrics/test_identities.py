"""Relations between the metrics that hold for every batch."""

from dataclasses import replace

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simlab.metrics import METRICS, PROBABILITY_EDGES
from simlab.objectives import TokenBatch
from tests.metrics.strategies import SHAPE, batches, compiled, measure
from tests.tolerances import assert_exact

EPS = 2.0**-24
TOKENS = SHAPE[0] * SHAPE[1]
# Of a sum of TOKENS terms, each the product of a few rounded factors, in two programs.
ROUND_OFF = 2 * (TOKENS + 10) * EPS
# The largest numbers that are summed: rho^2 is at most exp(6), a sequence's squared product exp(30).
LARGEST = {"chi2_token": np.exp(6), "chi2_sequence": np.exp(30), "ppl_ratio": np.exp(3)}
LARGEST |= dict.fromkeys(("training_ppl", "rollout_ppl"), np.exp(9))
FULL = st.just(np.ones(SHAPE, bool))


def close(actual, expected, size: float = 20.0) -> None:
    """Equal to round-off in sums of terms up to `size`."""
    np.testing.assert_allclose(actual, expected, rtol=ROUND_OFF, atol=ROUND_OFF * size)


def conditioning_number(batch: TokenBatch) -> float:
    """How much a correlation magnifies round-off: second moment over variance."""
    p = np.exp(np.stack([batch.logp_train, batch.logp_infer]).astype(np.float64))[:, batch.mask]
    with np.errstate(divide="ignore"):
        return float(np.max((p**2).mean(1) / p.var(1)))


@given(batches())
def test_bounds(batch):
    m = measure(batch)
    tokens, sequences = batch.mask.sum(), batch.mask.any(1).sum()
    assert 1 / tokens * (1 - ROUND_OFF) <= m["ess_token"] <= 1 + ROUND_OFF
    assert 1 / sequences * (1 - ROUND_OFF) <= m["ess_sequence"] <= 1 + ROUND_OFF
    assert not abs(m["pcc"]) > 1
    assert m["k3_kl"] >= 0
    # The mean is 1 + mean(rho - 1): its round-off is that of numbers of size 1, even if every rho is small.
    assert m["min_rho"] - ROUND_OFF <= m["mean_rho"] <= m["max_rho"] + ROUND_OFF * max(1, m["max_rho"])
    assert 0 <= m["discrepancy"] <= m["discrepancy_max"] * (1 + ROUND_OFF) <= 2
    assert abs(m["log_ppl_diff"]) <= m["log_ppl_abs_diff"] + ROUND_OFF * 20
    assert m["log_ppl_diff_min"] <= m["log_ppl_diff"] + ROUND_OFF * 20
    assert m["log_ppl_diff"] <= m["log_ppl_diff_max"] + ROUND_OFF * 20


@given(batches())
def test_moments_of_rho_belong_together(batch):
    m = measure(batch)
    mean, second = m["mean_rho"], m["chi2_token"] + 1
    close(m["std_rho"] ** 2, second - mean**2, size=2 * np.exp(6))
    close(m["ess_token"] * second, mean**2, size=np.exp(6))
    close(m["k3_kl"], mean - 1 + m["k1_kl"])


@given(batches())
def test_the_bins_contain_all_tokens(batch):
    m = measure(batch)
    counts = m["tokens_by_pi_train"]
    assert counts.shape == (len(PROBABILITY_EDGES) - 1,)
    assert counts.sum() == batch.mask.sum()
    inside = np.histogram(np.exp(batch.logp_train[batch.mask]), np.float32(PROBABILITY_EDGES))[0]
    assert_exact(counts.astype(int), inside)
    rho, rms = m["mean_rho_by_pi_train"], m["rms_log_rho_by_pi_train"]
    assert (np.isnan(rho) == (counts == 0)).all()
    close(np.nansum(counts * rho) / counts.sum(), m["mean_rho"], size=np.exp(3))
    close(np.nansum(counts * rms**2) / counts.sum(), m["rms_log_rho"] ** 2)


@given(batches(masks=FULL))
def test_equal_lengths_make_the_two_averages_agree(batch):
    m = measure(batch)
    close(m["discrepancy"], m["discrepancy_per_token"])
    close(m["abs_seq_log_ratio"], SHAPE[1] * m["log_ppl_abs_diff"], size=100)


@given(batches())
def test_engines_that_agree(batch):
    batch = replace(batch, logp_infer=batch.logp_train)
    m = measure(batch)
    zero = (
        "std_rho",
        "rms_log_rho",
        "discrepancy",
        "discrepancy_per_token",
        "discrepancy_max",
        "k1_kl",
        "k3_kl",
    )
    zero += ("chi2_token", "chi2_sequence", "abs_seq_log_ratio", "log_ppl_abs_diff", "log_ppl_diff")
    for name in (*zero, "fraction_rho_above", "fraction_rho_below"):
        assert m[name] == 0, name
    for name in ("mean_rho", "max_rho", "min_rho", "max_rho_sequence", "min_rho_sequence", "ess_token"):
        assert m[name] == 1, name
    assert m["training_ppl"] == m["rollout_ppl"]
    if np.isfinite(m["pcc"]):
        close(m["pcc"], 1.0, size=conditioning_number(batch))


@given(batches(), st.permutations(range(SHAPE[0])))
def test_the_order_of_the_sequences_does_not_matter(batch, order):
    rows = {name: getattr(batch, name)[list(order)] for name in ("logp", "logp_train", "logp_infer", "mask")}
    m, permuted = measure(batch), measure(replace(batch, **rows))
    for name in set(METRICS) - {"pcc"}:
        close(permuted[name], m[name], LARGEST.get(name, 20.0))
    if np.isfinite(conditioning_number(batch)):
        close(permuted["pcc"], m["pcc"], size=10 * conditioning_number(batch))


@given(batches(), st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e38]))
def test_padding_is_never_read(batch, garbage):
    columns = ("logp", "logp_train", "logp_infer")
    spoiled = {name: np.where(batch.mask, getattr(batch, name), np.float32(garbage)) for name in columns}
    clean = compiled(batch)
    for name, value in compiled(replace(batch, **spoiled)).items():
        assert_exact(value, clean[name])


def test_vmap_is_a_loop():
    rng = np.random.default_rng(0)
    logps = (rng.uniform(-6, -1, (3, *SHAPE)) + rng.normal(0, 0.3, (2, 3, *SHAPE))).astype(np.float32)
    masks = np.arange(SHAPE[1]) < rng.integers(0, SHAPE[1] + 1, (3, SHAPE[0], 1))

    def metrics(logp_train, logp_infer, mask):
        return compiled(TokenBatch(logp_train, logp_train, logp_infer, np.zeros(4, np.float32), mask, 2))

    rows = [metrics(*row) for row in zip(*logps, masks, strict=True)]
    for name, values in jax.vmap(metrics)(*logps, masks).items():
        close(values, np.stack([row[name] for row in rows]), LARGEST.get(name, 20.0))
