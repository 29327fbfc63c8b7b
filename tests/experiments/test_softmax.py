"""The softmax experiment: its kernels against oracles, its rules on made-up numbers, its run twice."""

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import pytest

from experiments.measurements.softmax import experiment, real, sampling, statistics, tables, theory
from experiments.measurements.softmax.sampling import EXACT, make_setting, probabilities
from simlab.engines import SOFTMAX_PLACEMENTS, log_softmax, softmax, softmax_placement
from simlab.studies.experiment import execute
from tests.tolerances import (
    assert_exact,
    assert_ulp,
    assert_within_interval,
    binomial_interval,
    normal_interval,
)


def _logits(n: int, vocabulary: int, seed: int = 0):
    return sampling.logits(jax.random.key(seed), n, vocabulary)


def _nothing(n: int):
    return jnp.full((n,), -jnp.inf)


@pytest.mark.parametrize("placement", SOFTMAX_PLACEMENTS)
def test_without_remainder_probabilities_are_those_of_the_engine(placement):
    z = _logits(4, 300)
    sites = softmax_placement(placement, "bf16")
    expected = jnp.exp(log_softmax(z, sites)) if placement.endswith("log-probs") else softmax(z, sites)
    assert_exact(probabilities(z, _nothing(4), make_setting(placement, "bf16")), expected)


def test_the_remainder_stands_for_the_logits_left_out():
    z = jnp.sort(3 * _logits(5, 512), -1)
    rest = jax.nn.logsumexp(z[:, :200], -1)
    whole = probabilities(z, _nothing(5), EXACT)[:, 200:]
    # Both normalizers are sums of at most 512 nonnegative terms (depth 9 in units of 2^-24, that is at
    # most 9 ulp each); logsumexp, exp and the addition add 4 + 2 + 1 ulp to a part that is below half.
    assert_ulp(probabilities(z[:, 200:], rest, EXACT), whole, k=2 * 9 + 7)


def test_temperature_follows_and_centering_precedes_rounding():
    z = _logits(3, 64) + 20.0
    rounded = z.astype(jnp.bfloat16).astype(jnp.float32)
    warm = probabilities(z, _nothing(3), make_setting("logits", "bf16", temperature=1.5))
    assert_exact(warm, probabilities(rounded / jnp.float32(1.5), _nothing(3), EXACT))
    shifted = (z - z.max(-1, keepdims=True)).astype(jnp.bfloat16).astype(jnp.float32)
    centered = probabilities(z, _nothing(3), make_setting("centered-logits", "bf16"))
    assert_exact(centered, probabilities(shifted, _nothing(3), EXACT))


@pytest.mark.parametrize("vocabulary", [64, 100, 2047])
def test_draw_inverts_the_running_sum(vocabulary):
    generator = np.random.default_rng(vocabulary)
    # Integer weights with a power of two as total: all sums are exact in float32.
    p = generator.multinomial(2**14, generator.dirichlet(np.full(vocabulary, 0.3))).astype(np.float32)
    u = np.arange(0, 2**14, 7, dtype=np.float32) / 2**14
    expected = np.searchsorted(np.cumsum(p), u * 2**14, side="right")
    np.testing.assert_array_equal(sampling.draw(jnp.asarray(p), jnp.asarray(u)), expected)


def test_skipped_settings_leave_others_unchanged():
    draw = partial(tables.draw_pairs, 7, per_vector=10, tokens=2500)
    one = draw(wanted=lambda placement, name: (placement, name) == ("logits-probs", "bf16"))
    two = draw(wanted=lambda placement, name: placement in ("logits-probs", "logits") and name == "bf16")
    assert set(one) == {("logits-probs", "bf16")}
    np.testing.assert_array_equal(one["logits-probs", "bf16"], two["logits-probs", "bf16"])
    assert not np.array_equal(two["logits", "bf16"][1], two["logits-probs", "bf16"][1])


def test_describe_agrees_with_float64():
    z = jnp.sort(_logits(3, 500), -1)
    train, infer = (
        probabilities(z, _nothing(3), one) for one in (EXACT, make_setting("logits-probs", "fp16"))
    )
    found = tables.describe(train, infer)
    p, q = np.asarray(train, float), np.asarray(infer, float)
    weight = q / q.sum(-1, keepdims=True)
    rho = p / q
    mean = np.sum(weight * rho, -1).mean()
    expected = {
        "mean": mean,
        "std": np.sqrt(np.sum(weight * (rho - mean) ** 2, -1).mean()),
        "max": rho.max(),
        "min": rho.min(),
        "inverse": np.sum(weight / rho, -1).mean(),
        "kl": np.sum(weight * np.log(weight / (p / p.sum(-1, keepdims=True))), -1).mean(),
        "levels": np.mean([len(np.unique(row)) for row in q]),
        "lost": 0.0,
    }
    for name, value in expected.items():
        # Sums of 500 float32 terms; the KL and the std are sums of squares of differences of 6e-4 that
        # carry an error of 2^-24 each, so 1e-4 relative and less.
        np.testing.assert_allclose(found[name], value, rtol=1e-3 if name in ("kl", "std") else 2e-6)


def test_describe_says_so_where_everything_was_rounded_to_zero():
    z = jnp.sort(_logits(2, 500), -1)
    train = probabilities(z, _nothing(2), EXACT)
    found = tables.describe(train, jnp.zeros_like(train))
    assert np.isnan(found["std"])
    assert np.isnan(found["kl"])
    assert found["levels"] == 0
    assert found["lost"] == pytest.approx(1, abs=1e-6)


def test_theory_predicts_the_spread_of_rounded_float64_softmax():
    generator = np.random.default_rng(5)
    z = generator.normal(0, 1.5, (400, 2048)).astype(np.float32).astype(float)
    p = np.exp(z)
    p /= p.sum(-1, keepdims=True)
    q = np.exp(z.astype(ml_dtypes.bfloat16).astype(float))
    q = (q / q.sum(-1, keepdims=True)).astype(ml_dtypes.bfloat16).astype(float)
    square = np.sum(q * (p / q - 1) ** 2, -1)
    share, _ = theory.gaussian_shares(1.5)
    # Finite vocabulary: the largest of 2048 logits is near 5, so the tilted law lacks its tail (1% of the
    # std); first order leaves out terms of relative size 0.005.
    low, high = normal_interval(len(square), float(theory.rho_std(7, share)) ** 2, square.std(), alpha=1e-6)
    assert_within_interval(square.mean(), low * 0.97, high * 1.01, alpha=1e-6)
    exact = np.sum(p * theory.token_variance(z, p, 7), -1)
    low, high = normal_interval(len(square), 0.0, (square - exact).std(), alpha=1e-6)
    assert_within_interval((square - exact).mean(), low, high, alpha=1e-6)
    pair = theory.empirical_shares(z, p)
    assert theory.rho_std(7, *pair) == pytest.approx(np.sqrt(exact.mean()), rel=1e-6)


def test_statistics_on_known_samples():
    a, b = np.array([1.0, 1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0, 4.0])
    assert statistics.total_variation(a, b) == pytest.approx(0.5)
    assert statistics.jaccard(a, b) == pytest.approx(0.5)
    assert statistics.shared_mass(a, b) == pytest.approx(0.75)


def test_prediction_interval_covers():
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(1000):
        low, high = statistics.prediction_interval(generator.normal(size=8), 5, 0.05)
        covered += low <= generator.normal(size=5).mean() <= high
    assert_within_interval(covered, *binomial_interval(1000, 0.95, 1e-6), alpha=1e-6)


def test_rule_accepts_paper_numbers_and_rejects_wider_std():
    seeds = np.arange(6)
    noise = np.array([-1, 1, -1, 1, -1, 1]) * 1e-5
    base = {"per_vector": 1, "format": "bf16", "levels": 10, "levels_float32": 1000}
    rows = [
        base | {"placement": name, "seed": s, **statistics.PAPER, "std": std + noise[s]}
        for name, std in (("right", 0.0048), ("wide", 0.0074))
        for s in seeds
    ]
    fits = statistics.fit(pd.DataFrame(rows)).groupby("placement")["inside"].all()
    assert fits.to_dict() == {"right": True, "wide": False}


def test_real_logits_are_small_sorted_and_faithful():
    assert real.FILE.stat().st_size < 1_000_000
    taken = real.load()
    assert taken.logits.shape == (100, 2047)
    assert taken.logits.dtype == np.float32
    assert (np.diff(taken.logits, axis=-1) >= 0).all()
    both = real.Distributions.of(taken.logits, taken.rest, tables.BF16)
    # What the remainder stands for holds at most 9% of the probability, and its tokens' spread is close
    # to that of the others.
    np.testing.assert_allclose(both.std(), taken.full_std, rtol=0.03)


# One process runs all tests that read the two runs.
READS_SMOKE_RUNS = pytest.mark.xdist_group("smoke runs of softmax")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    return [execute(experiment.EXPERIMENT, folder, smoke=True) for folder in folders]


@pytest.mark.slow
@READS_SMOKE_RUNS
def test_smoke_run_repeats_byte_for_byte(smoke):
    first, second = smoke
    assert first.table_names == second.table_names
    for name in first.table_names:
        assert (first.folder / f"{name}.parquet").read_bytes() == (
            second.folder / f"{name}.parquet"
        ).read_bytes(), name


@pytest.mark.slow
@READS_SMOKE_RUNS
def test_smoke_run_measures_every_criterion(smoke):
    measured = experiment.collect_evidence(smoke[0])
    assert [each.trial.claim for each in measured] == ["H1", "H2", "H3"]
    assert all(np.isfinite(sample.estimate) for each in measured for sample in each.samples)


@pytest.mark.slow
@READS_SMOKE_RUNS
def test_sweep_covers_every_combination_once(smoke):
    frame = smoke[0].table("sweep")
    axes = ["format", "placement", "rounding"]
    assert not frame.duplicated(axes).any()
    assert len(frame) == len(tables.SWEPT_FORMATS) * len(tables.SWEPT_PLACEMENTS) * len(
        tables.ROUNDINGS_SWEPT
    )
    untouched = frame[(frame["format"] == "fp32") & (frame["placement"] != "centered-logits")]
    assert (untouched["std"] == 0).all()
