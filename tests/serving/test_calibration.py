"""Calibration: the distance by hand, and the recovery of a known emulation."""

import jax
import numpy as np
import pandas as pd
import pytest

from simlab.engines import ENGINES
from simlab.models import TransformerConfig, init_params
from simlab.serving.calibration import (
    Emulation,
    calibrate,
    find_pair,
    get_catalog_emulations,
    measure_distance,
    score_with_emulation,
)

CONFIG = TransformerConfig(hidden_size=32, num_hidden_layers=1, intermediate_size=32)


def test_find_pair_needs_no_names_when_one_pair_was_measured():
    tokens = pd.DataFrame({"sampling_engine": ["a", "a", "a"], "scoring_engine": ["a", "b", "b"]})
    assert find_pair(tokens, None, None) == find_pair(tokens, "a", "b") == ("a", "b")
    assert find_pair(tokens, "a", "a") == ("a", "a")
    with pytest.raises(ValueError, match=r"must name one pair .* of a / a, a / b, got c / None"):
        find_pair(tokens, "c", None)
    tokens.loc[3] = ["a", "c"]
    with pytest.raises(ValueError, match=r"of a / a, a / b, a / c, got None / None"):
        find_pair(tokens, None, None)


def test_measure_distance_by_hand():
    """Order matters between bins, not within a bin; relative to mean |measured|."""
    measured, bins = np.asarray([0.1, -0.3, 0.2, 0.4]), np.asarray([0, 0, 1, 1])
    assert measure_distance(measured, np.asarray([-0.3, 0.1, 0.4, 0.2]), bins) == 0.0
    assert measure_distance(measured, np.zeros(4), bins) == pytest.approx(1.0)
    assert measure_distance(measured, np.asarray([0.2, 0.4, 0.1, -0.3]), bins) == pytest.approx(
        (abs(-0.3 - 0.2) + abs(0.1 - 0.4) + abs(0.2 + 0.3) + abs(0.4 - 0.1)) / 1.0
    )
    assert measure_distance(np.zeros(2), np.zeros(2), np.zeros(2)) == 0.0
    assert measure_distance(np.zeros(2), np.ones(2), np.zeros(2)) == float("inf")


def test_calibrate_recovers_the_emulation_of_the_data():
    """BF16 predicts the mismatch of BF16; FP8 does not, and its note lists what is not modeled."""
    params = init_params(jax.random.key(0), CONFIG)
    tokens = np.random.default_rng(0).integers(2, 30, (16, 12)).astype(np.int32)
    train, bf16, fp8 = (
        score_with_emulation(params, CONFIG, ENGINES[name], tokens[:, :4], tokens[:, 4:])
        for name in ("f32", "bf16", "fp8-e4m3")
    )
    mask = np.arange(8)[None] < np.arange(1, 17)[:, None]
    measured = train[:, ::-1], bf16[:, ::-1]  # at other positions, on which the fit must not depend
    emulations = get_catalog_emulations(("fp8-e4m3", "bf16")) | {"none": Emulation(ENGINES["f32"], "all")}
    by_engine = {"bf16": train - bf16, "fp8-e4m3": train - fp8, "none": 0 * train}
    labels = {id(emulation.engine): name for name, emulation in emulations.items()}

    def predict(engine):
        return by_engine[labels[id(engine)]][:, ::-1]

    fits = {fit.emulation: fit for fit in calibrate(*measured, mask, predict, emulations, resamples=50)}
    assert next(iter(fits)) == "bf16"
    assert fits["bf16"].distance == fits["bf16"].ci_high == 0.0
    assert fits["bf16"].verdict == "good"
    assert fits["bf16"].best == 1.0
    assert fits["bf16"].rms_predicted == fits["bf16"].rms_measured
    assert fits["none"].distance == pytest.approx(1.0)
    assert fits["fp8-e4m3"].ci_low > 1.0
    assert fits["fp8-e4m3"].verdict == "poor"
    assert fits["fp8-e4m3"].note.startswith("not modeled: ")


def test_calibrate_names_what_is_not_modeled():
    """A prediction 0.4 times the measured size everywhere is at 0.6; at 0.7 times, 0.3."""
    rng = np.random.default_rng(1)
    log_rho = rng.normal(scale=0.1, size=(64, 8))
    train = np.full((64, 8), -1.0)
    emulations = {"0.4": Emulation(ENGINES["f32"], "a"), "0.7": Emulation(ENGINES["bf16"], "b")}
    factors = {id(emulation.engine): float(name) for name, emulation in emulations.items()}
    fits = calibrate(
        train,
        train - log_rho,
        np.ones((64, 8), bool),
        lambda engine: factors[id(engine)] * log_rho,
        emulations,
        resamples=20,
    )
    assert [(fit.emulation, fit.verdict, fit.note) for fit in fits] == [
        ("0.7", "fair", "not modeled: b"),
        ("0.4", "poor", "not modeled: a"),
    ]
    assert fits[0].distance == pytest.approx(0.3)
    assert fits[1].distance == pytest.approx(0.6)
