"""Logs of random policies: every variant applies to them, and their parts resume."""

import numpy as np
import pandas as pd
import pytest

from experiments.diagnosis_roc import RANDOM, VISIBLE, is_visible, simulate, split_engines
from experiments.diagnosis_study.faults import FAULTS
from experiments.diagnosis_study.fitting import MIN_FAULTLESS, OFFSETS, fit_faultless_offset
from experiments.diagnosis_study.forward_passes import HELD_OUT_ENGINES, INFER_ENGINES
from experiments.diagnosis_study.parts import load_or_simulate
from experiments.diagnosis_study.random_policies import make_random_pool


@pytest.fixture(scope="module")
def pool():
    return make_random_pool(3)


def test_pool_has_every_pass_at_the_same_contexts(pool):
    shape = pool.reference.logits.shape
    assert {found.logits.shape for found in (*pool.engines.values(), *pool.faults.values())} == {shape}
    assert len(pool.sequence) == len(pool.index) == shape[0]
    assert (pool.index[np.flatnonzero(np.diff(pool.sequence)) + 1] == 0).all()


@pytest.mark.slow
def test_every_variant_gives_a_log(pool):
    table = simulate(pool, "fit", 1, 11)
    fitted = {name for name, fault in FAULTS.items() if not (fault.held_out or fault.needs_experts)}
    assert set(table["fault"]) == fitted
    # Most faults move the mismatch beyond the noise.
    assert is_visible(table, VISIBLE).mean() > 0.8


@pytest.mark.slow
def test_noise_on_log_probs_has_its_size():
    pools = (make_random_pool(seed) for seed in range(20))
    direct = next(pool for pool in pools if pool.direct > 0.01)
    table = simulate(direct, "fit", 1, 5)
    level = 10 ** table[table["fault"] == "no fault"]["level"].median()
    # Clipping at 0 halves the noise of sure tokens at most.
    assert 0.5 * direct.direct < level < 1.5 * direct.direct


def test_part_is_simulated_once(tmp_path):
    calls = []

    def make():
        calls.append(1)
        return pd.DataFrame({"level": [0.5]})

    for _ in range(2):
        assert load_or_simulate(tmp_path, "fit chain-6", make)["level"].tolist() == [0.5]
    load_or_simulate(tmp_path, "fit chain-10", make)
    assert len(calls) == 2


def test_logs_are_scored_without_their_engine():
    engines = [*(f"f32/{name}" for name in INFER_ENGINES), ""]
    held = pd.DataFrame({"engines": engines, "policy": "chain-13"})
    fitted = pd.concat([held.assign(policy="chain-6"), held.assign(policy=RANDOM)])
    splits = split_engines(fitted, held)
    assert sorted(name for _, unseen in splits for name in unseen["engines"]) == sorted(engines)
    for part, unseen in splits:
        trained = part[part["policy"] != RANDOM]
        assert not set(trained["engines"]) & set(unseen["engines"])
        assert len(trained) + len(unseen) == len(held)
        assert (part["policy"] == RANDOM).sum() == len(held)
    assert not set(HELD_OUT_ENGINES) & set(INFER_ENGINES)


def test_offset_is_the_least_that_names_faultless_logs():
    rng = np.random.default_rng(0)
    index, is_rounding = np.repeat([0, 1], 500), np.array([False, True])
    margin = rng.normal(0.3, 1.0, 1000) * np.where(index == 1, 1, -1)
    scores = np.stack([np.zeros(1000), margin], axis=1)

    def named(offset):
        return np.mean((scores[index == 1] + offset).argmax(1) == 1)

    offset = fit_faultless_offset(scores, index, is_rounding)
    assert offset[0] == 0
    assert named(offset) >= MIN_FAULTLESS > named(offset - 0.1 * is_rounding)
    sure = scores + 10 * is_rounding
    assert (fit_faultless_offset(sure, index, is_rounding) == 0).all()
    hopeless = scores - 10 * is_rounding
    assert fit_faultless_offset(hopeless, index, is_rounding)[1] == OFFSETS[-1]
