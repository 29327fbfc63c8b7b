import numpy as np
import pytest
from scipy import stats

from simlab.studies import change_point, holm, paired_effect
from simlab.studies.sequential import Looks, stopping_bounds, stopping_levels
from simlab.studies.statistics import holm_levels
from tests.tolerances import assert_within_interval, binomial_interval


def _runs(rng, effect=0.0, clusters=8, seeds=2):
    """Differences of paired runs: two seeds of each warm start share what the warm start adds."""
    labels = np.repeat(np.arange(clusters), seeds)
    shared = rng.normal(scale=1.0, size=clusters)[labels]
    return effect + shared + rng.normal(scale=0.5, size=labels.size), labels


@pytest.mark.parametrize("clusters", [3, 5, 8, 16])
def test_intervals_cover_as_they_say(clusters):
    rng, trials = np.random.default_rng(clusters), 1000
    hits = 0
    for _ in range(trials):
        found = paired_effect(*(values := _runs(rng, 0.7, clusters))[:1], 0.0, values[1])
        hits += found.low <= 0.7 <= found.high
    # Student's interval is exact here; its union with that of the sign flips may cover more.
    low, high = binomial_interval(trials, 0.95, 1e-4)
    assert low <= hits <= high + 0.03 * trials


def test_seeds_of_one_warm_start_do_not_count_twice():
    rng = np.random.default_rng(0)
    values, labels = _runs(rng, 0.0)
    once = paired_effect(values, 0.0, labels)
    twice = paired_effect(np.tile(values, 10), 0.0, np.tile(labels, 10))
    assert (twice.low, twice.high) == pytest.approx((once.low, once.high), rel=1e-12)
    naive = paired_effect(np.tile(values, 10), 0.0, np.arange(160))
    assert naive.high - naive.low < 0.5 * (once.high - once.low)


def test_paired_effect_of_known_numbers():
    # Cluster means 1, 2, 3: three signs reject only what lies outside of them, beyond Student's 1.07 to 2.93.
    found = paired_effect([3.0, 4.0, 6.0, 6.0], [2.0, 3.0, 4.0, 3.0], ["a", "a", "b", "c"])
    assert found.effect == pytest.approx(1.75)
    changes = [3.0, 4.0, 6.0], [2.0, 2.0, 3.0], ["a", "b", "c"]
    found = paired_effect(*changes, level=0.75)
    assert (found.effect, found.low, found.high) == pytest.approx((2, 1, 3), abs=1e-4)
    assert found.num_clusters == 3
    assert paired_effect(*changes).high == np.inf, "three signs reach no level above 75%"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 2.0], [1.0], [0, 1]), "one entry per run"),
        (([1.0, np.nan], [1.0, 1.0], [0, 1]), "1 of 2 runs are not finite"),
        (([1.0, 2.0], [1.0, 1.0], [0, 0]), "at least two clusters"),
    ],
)
def test_paired_effect_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        paired_effect(*arguments)


# Jennison & Turnbull 2000, Tab. 2.1 and 2.3: two-sided 5%.
POCOCK = {1: 1.960, 2: 2.178, 5: 2.413, 10: 2.555}
OBRIEN_FLEMING = {1: 1.960, 2: 1.977, 5: 2.040, 10: 2.087}


@pytest.mark.parametrize(("shape", "table"), [("pocock", POCOCK), ("obrien_fleming", OBRIEN_FLEMING)])
def test_bounds_as_tabulated(shape, table):
    for looks, constant in table.items():
        # Half a unit of the last printed digit.
        bounds = stopping_bounds(tuple(range(1, looks + 1)), shape)
        assert bounds[-1] == pytest.approx(constant, abs=5.1e-4)
        assert 1 - 2 * stats.norm.sf(bounds) == pytest.approx(stopping_levels(looks, shape))


@pytest.mark.parametrize(
    ("shape", "policies"),
    [("pocock", (1, 2, 3, 4)), ("obrien_fleming", (1, 2, 3, 4)), ("obrien_fleming", (16, 24))],
)
def test_looking_often_keeps_the_rate_of_false_alarms(shape, policies):
    trials = 20_000
    draws = np.random.default_rng(1).normal(size=(trials, policies[-1])).cumsum(1) / np.sqrt(
        np.arange(1, policies[-1] + 1)
    )
    scores = draws[:, np.array(policies) - 1]
    crossed = (np.abs(scores) > stopping_bounds(policies, shape)).any(1).sum()
    assert_within_interval(crossed, *binomial_interval(trials, 0.05, 1e-4), alpha=1e-4)


def test_looks_decide_nothing_at_the_first_of_several():
    looks = Looks((8, 16, 24))
    assert [looks.decides(policies) for policies in (8, 15, 16, 24)] == [False, False, True, True]
    assert looks.nominal(0.05, 16) < 0.015 < looks.nominal(0.05, 24) < 0.05
    assert Looks().decides(2)
    assert Looks().nominal(0.05, 8) == 0.05


@pytest.mark.parametrize("policies", [16, 24])
@pytest.mark.parametrize("alpha", [0.05, 0.004, 1e-5])
def test_overall_p_inverts_the_nominal_level(alpha, policies):
    looks = Looks((8, 16, 24))
    assert looks.overall(looks.nominal(alpha, policies), policies) == pytest.approx(alpha, rel=1e-3)
    assert looks.overall(0.9, policies) == 0.9


def test_holm_of_a_worked_case_and_its_rate():
    # Holm 1979: 4 x 0.005, 3 x 0.01, 2 x 0.03, then never below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    drawn = np.random.default_rng(3).uniform(size=(5000, 10))
    alarms = sum((holm(row) < 0.05).any() for row in drawn)
    assert_within_interval(alarms, *binomial_interval(5000, 1 - 0.995**10, 1e-4), alpha=1e-4)


def test_holm_levels_reject_what_adjusted_p_values_do():
    assert holm_levels([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.05 / 3, 0.025, 0.025, 0.0125])
    assert holm_levels([0.5]) == pytest.approx([0.05])
    for row in np.random.default_rng(4).uniform(size=(200, 6)) ** 4:
        assert (row <= holm_levels(row)).tolist() == (holm(row) <= 0.05).tolist()


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8])
def test_change_point_false_alarms(memory):
    rng, trials, alarms = np.random.default_rng(4), 1000, 0
    for _ in range(trials):
        noise = rng.normal(size=250)
        for step in range(1, 250):
            noise[step] += memory * noise[step - 1]
        alarms += change_point(noise[50:]).p_value < 0.05
    # The law is that of infinitely many values, and phi is estimated: within 0.02 at n = 200.
    low, high = binomial_interval(trials, 0.05, 1e-4)
    assert low / trials - 0.02 <= alarms / trials <= high / trials + 0.02


def test_change_point_finds_the_step():
    rng = np.random.default_rng(5)
    found = [change_point(rng.normal(size=200) + 1.5 * (np.arange(200) >= 120)) for _ in range(50)]
    assert all(each.p_value < 1e-3 for each in found)
    assert np.abs(np.median([each.index for each in found]) - 120) <= 1
    assert np.mean([each.shift for each in found]) == pytest.approx(1.5, abs=0.15)
    assert change_point(np.repeat([0.0, 1.0], 8)).index == 8
    assert change_point(np.zeros(16)).p_value == 1.0
    with pytest.raises(ValueError, match="finite"):
        change_point([1.0, np.nan] * 8)
