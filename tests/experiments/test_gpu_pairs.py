"""The arithmetic of the experiment on GPUs: exact shares, intervals, decisions."""

import numpy as np
import pytest

from experiments.measurements.gpu_pairs import verdicts
from experiments.measurements.gpu_pairs.factors import (
    FACTORS,
    between,
    with_accumulator_bits,
)
from experiments.measurements.gpu_pairs.measures import interval, mismatch, squares
from simlab.engines import ENGINES, static_signature
from simlab.studies.attribution import shapley, subsets


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_shapley_shares_sum_to_the_whole_and_are_fair(count):
    rng = np.random.default_rng(count)
    names = tuple("abcd"[:count])
    # Two units; `idle` changes nothing, and the first name is worth 3 whenever it joins.
    table = {s: rng.normal(size=2) for s in subsets(names)}
    players = (*names, "idle", "fixed")

    def value(chosen):
        return table[chosen & frozenset(names)] + 3.0 * ("fixed" in chosen)

    shares = shapley(value, players)
    whole = value(frozenset(players)) - value(frozenset())
    # A weighted sum of at most 2^6 numbers of order 1 in float64.
    np.testing.assert_allclose(sum(shares.values()), whole, rtol=0, atol=1e-13)
    np.testing.assert_allclose(shares["idle"], 0, atol=1e-13)
    np.testing.assert_allclose(shares["fixed"], 3, atol=1e-13)


def test_shapley_of_two_is_the_average_of_both_orders():
    worth = {frozenset(): 0.0, frozenset("a"): 1.0, frozenset("b"): 4.0, frozenset("ab"): 10.0}
    shares = shapley(lambda s: np.array(worth[s]), ("a", "b"))
    assert shares == {"a": (1 + 6) / 2, "b": (4 + 9) / 2}


def test_engines_between_two_cards_end_at_them():
    assert len(subsets(FACTORS)) == 8
    fp8 = between(frozenset({"format", "accumulator"})).projection.accumulator
    assert fp8 == ENGINES["h100-fp8"].projection.accumulator
    assert between(frozenset()).projection.accumulator == ENGINES["h100-bf16"].projection.accumulator
    assert with_accumulator_bits(25).projection.accumulator == ENGINES["b200-fp8"].projection.accumulator
    assert static_signature(with_accumulator_bits(7)) == static_signature(ENGINES["h100-fp8"])


def test_mismatch_reads_only_tokens_that_count():
    train, infer = np.log([[0.5, 0.2], [0.1, 0.9]]), np.log([[0.25, 0.7], [0.1, 0.9]])
    mask = np.array([[True, False], [True, True]])
    found = mismatch(train, infer, mask)
    assert found["rms_log_rho"] == pytest.approx(np.log(2) / np.sqrt(3))
    assert found["discrepancy"] == pytest.approx(0.25 / 3)
    assert found["equal"] == pytest.approx(2 / 3)
    np.testing.assert_allclose(squares(train, infer, mask), [np.log(2) ** 2, 0])


def test_intervals_shrink_around_the_ratio():
    rng = np.random.default_rng(0)
    few, many = (rng.exponential(size=n) for n in (20, 2000))
    spans = [np.diff(interval(x, np.ones_like(x)))[0] for x in (few, many)]
    # 100 times the units make a tenth of the width; 5 leaves room for the spread of 20 exponentials.
    assert spans[1] < spans[0] / 5
    low, high = interval(many, np.ones_like(many))
    assert low < many.mean() < high


def test_verdicts_follow_their_rules():
    pair = {"policy": "p", "seed": 0, "rms_log_rho": 1.0, "rms_low": 0.9, "rms_high": 1.1}
    near = pair | {
        "train": "b200-fp8",
        "infer": "h100-fp8",
        "rms_log_rho": 0.02,
        "rms_low": 0.009,
        "rms_high": 0.03,
    }
    tables = {
        "vectors": [{"equal": 3, "outputs": 3}, {"equal": 1, "outputs": 2}],
        "shares": [
            {"policy": "p", "seed": 0, "factor": "accumulator", "share": 0.05, "low": 0.02, "high": 0.08},
            {"policy": "q", "seed": 0, "factor": "accumulator", "share": 0.0, "low": -0.005, "high": 0.005},
        ],
        "pairs": [pair | {"train": "h100-bf16", "infer": "h100-fp8"}, near],
        "orders": [pair | {"order": "split", "rms_high": 0.005, "rms_low": 0.0}, pair | {"order": "other"}],
    }
    found = [(row["claim"], row["verdict"]) for row in verdicts.judge(tables)]
    assert found == [
        ("T1", "contradicted"),
        ("T2", "supported"),
        ("T2", "negligible"),
        ("T3", "negligible"),
        ("T3", "supported"),
        ("T4", "negligible"),
    ]
