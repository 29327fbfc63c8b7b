"""Signatures of faults at known places: rows, chunks, ends and steps; shrinkage of probabilities."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import rankdata

from simlab.diagnosis.classifier import load_classifier, shrink_probability
from simlab.diagnosis.injected_faults import generate_log
from simlab.diagnosis.log import TokenLog
from simlab.diagnosis.rank_tests import rank_values
from simlab.diagnosis.signatures import measure_signatures

ROWS, LENGTH = 96, 40


def _log(bad=None, **columns):
    """Return a log with Gaussian noise of 0.02 nats, and of 0.4 nats at the tokens `bad` [ROWS, LENGTH]."""
    rng = np.random.default_rng(0)
    infer = -rng.exponential(1.0, (ROWS, LENGTH)) - 0.05
    noise = np.full((ROWS, LENGTH), 0.02)
    if bad is not None:
        noise[np.broadcast_to(bad, noise.shape)] = 0.4
    train = np.minimum(infer + noise * rng.normal(size=noise.shape), 0)
    return TokenLog(
        lengths=np.full(ROWS, LENGTH),
        logp_train=train.ravel().astype(np.float32),
        logp_infer=infer.ravel().astype(np.float32),
        mask=np.ones(ROWS * LENGTH, bool),
        step=np.zeros(ROWS, np.int64),
        ids=rng.integers(0, 50, ROWS * LENGTH),
        **columns,
    )


ROW, INDEX = np.arange(ROWS)[:, None], np.arange(LENGTH)


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        (ROW % 4 == 1, "row_stride"),
        (ROW % 8 == 5, "row_stride"),
        (ROW // 8 % 4 == 2, "row_stride"),
        (ROW < 24, "row_block"),
        (INDEX // 8 % 2 == 1, "index_alternate"),
        ((INDEX >= LENGTH - 4) & (INDEX < LENGTH - 1), "before_last"),
        (INDEX == 0, "first_token_z"),
        (INDEX == LENGTH - 1, "last_token_z"),
        ((INDEX >= LENGTH - 4) & (INDEX < LENGTH - 1), "before_last_z"),
        (INDEX >= 25, "index_jump_z"),
        (INDEX >= LENGTH // 2, "half_t"),
        (ROW >= ROWS // 2, "row_trend"),
        (ROW % 4 == 1, "row_order"),
        (ROW * 7 % 5 == 1, "row_parity"),
        (ROW * 7 % 5 == 1, "row_halves"),
    ],
)
def test_signature_rises_at_its_fault(bad, name):
    with_fault, without = measure_signatures(_log(bad)), measure_signatures(_log())
    assert with_fault[name] > without[name] + 0.5


def test_tokens_of_a_stop_string_are_counted():
    log = _log()
    infer = log.logp_infer.reshape(ROWS, LENGTH).copy()
    infer[:, -3:] = 0
    found = measure_signatures(replace(log, logp_infer=infer.ravel()))
    assert found["trailing_zeros"] == 3
    assert found["end_constant"] > 0.9
    assert measure_signatures(log)["trailing_zeros"] == 0


def test_ids_share_an_offset():
    log = _log()
    offset = np.random.default_rng(1).normal(0, 0.05, 50)[log.ids]
    shifted = replace(log, logp_train=np.minimum(log.logp_train + offset, 0).astype(np.float32))
    assert measure_signatures(shifted)["id_offset_z"] > measure_signatures(log)["id_offset_z"] + 1


def test_frozen_engine_is_not_a_block_of_rows():
    """Blocks of rows count within a step: between steps the rows of all workers differ."""
    step = np.arange(ROWS) * 6 // ROWS
    frozen = measure_signatures(replace(_log(ROW >= ROWS // 2), step=step))
    worker = measure_signatures(replace(_log(ROW % 16 < 4), step=step))
    assert worker["row_block"] > frozen["row_block"] + 0.5
    assert frozen["row_trend"] > worker["row_trend"] + 0.5


def test_steps_explain_a_frozen_engine():
    steps = np.arange(ROWS) * 8 // ROWS
    frozen = replace(_log(ROW >= ROWS // 2), step=steps)
    scattered = replace(_log(ROW % 2 == 1), step=steps)
    assert measure_signatures(frozen)["step_fit"] > 0.8
    assert abs(measure_signatures(scattered)["step_fit"]) < 0.2


def test_balance_is_near_zero_for_samples_only():
    """The mean of rho is 1 for samples of the reported log-probs, and not if one list is off by a factor."""
    log = generate_log("no_fault", 0, 0, noise=0.5, sequences=128)
    twice = replace(log, logp_infer=2 * log.logp_infer)
    assert abs(measure_signatures(log)["rho_balance"]) < 0.5
    assert measure_signatures(twice)["rho_balance"] > 1


def test_neighbors_share_the_size_of_a_run():
    rng = np.random.default_rng(1)
    runs = np.repeat(rng.random((ROWS, LENGTH // 8)) < 0.3, 8, axis=1)
    assert measure_signatures(_log(runs))["neighbor_size"] > 0.3
    assert abs(measure_signatures(_log())["neighbor_size"]) < 0.1


def test_shrinkage_moves_probability_to_unknown():
    model = replace(load_classifier(), shrink=np.array([1.0, -1.0]))
    count, best = len(model.causes), int(np.argmax(model.causes == "position"))
    probs = np.full((1, count), 0.4 / (count - 1))
    probs[0, best] = 0.6
    shrunk, unknown = model._shrink(probs)[0], model.causes == "unknown"
    assert shrunk.argmax() == best
    assert shrunk[best] == pytest.approx(shrink_probability(np.array(0.6), model.shrink))
    assert shrunk[unknown] > probs[0, unknown]
    assert shrunk.sum() <= 1 + 1e-9


def test_log_has_the_places_of_its_tokens():
    lengths = np.array([2, 0, 3])
    log = TokenLog(lengths, np.zeros(5), np.zeros(5), np.ones(5, bool), np.zeros(3, np.int64))
    assert log.starts.tolist() == [0, 2, 2]
    assert log.sequence.tolist() == [0, 0, 2, 2, 2]
    assert log.index.tolist() == [0, 1, 0, 1, 2]
    assert log.from_end.tolist() == [1, 0, 2, 1, 0]


def test_ranks_are_those_of_scipy():
    rng = np.random.default_rng(0)
    for values in (rng.normal(size=200), rng.integers(0, 5, 200), np.zeros(4), np.zeros(0)):
        np.testing.assert_array_equal(rank_values(values), rankdata(values))


def test_ratio_after_updates_comes_from_versions_without_updates():
    log = generate_log("no_fault", 0, 7, noise=0.05)
    equal = replace(log, logp=log.logp_train, update=None, version=log.step - 1)
    assert measure_signatures(equal)["ratio_one_after_update"] == 1.0
    moved = replace(equal, logp=np.minimum(log.logp_train - np.float32(1e-3), 0))
    assert measure_signatures(moved)["ratio_one_after_update"] < 0.1
    fresh = replace(equal, version=log.step)
    assert np.isnan(measure_signatures(fresh)["ratio_one_after_update"])
