"""The simulation of the decision rule against its single criteria and its stored table."""

import numpy as np
import pytest

from experiments.papers.shared import collapses
from experiments.studies.decision_rule import (
    Family,
    flip_p_value,
    overall_p,
    simulate,
    t_p_values,
)
from simlab.core.paths import committed_results
from simlab.core.results import Results
from simlab.studies import holm
from simlab.studies.power import power_of_proportion
from simlab.studies.samples import Proportion, mean_of_policies
from simlab.studies.sequential import Looks
from tests.tolerances import binomial_interval


def test_p_values_are_those_of_the_samples():
    values = np.random.default_rng(0).normal(1.5, 0.6, (20, 2, 10))
    found = t_p_values(values, np.array([False, True]))
    for study in range(20):
        above, absent = (mean_of_policies(values[study, index]) for index in (0, 1))
        flips = [flip_p_value(values[study, index], bool(index)) for index in (0, 1)]
        inside = max(absent.p_beyond(-1.0, 1), absent.p_beyond(1.0, -1))
        assert min(max(found[study, 0], flips[0]), 1.0) == pytest.approx(above.p_beyond(1.0, 1), abs=1e-9)
        assert max(found[study, 1], min(flips[1], 1.0)) == pytest.approx(inside, abs=1e-9)


def test_adjusted_and_overall_p_are_those_of_the_rule():
    p = np.random.default_rng(1).uniform(size=(30, 7)) ** 3
    np.testing.assert_array_equal(holm(p), np.array([holm(row) for row in p]))
    looks = Looks((8, 16, 24))
    for value in (1e-4, 0.003, 0.03):
        assert overall_p(np.array([value]), (16, 24), 16)[0] == pytest.approx(
            looks.overall(value, 16), rel=0.02
        )


def test_false_support_of_a_family_at_the_margin():
    family = Family("made up", np.full(6, 2.0), np.zeros(6, bool), (np.zeros(1),) * 6)
    supported = simulate(np.random.default_rng(2), family, "normal", (8, 16, 24), 1.0, 800)
    # Each criterion is at the boundary: two-sided 5%, so 2.5% of the families; false alarm 1e-4.
    assert supported.any(1).sum() <= binomial_interval(800, 0.025, 1e-4)[1]


def test_each_criterion_draws_its_own_residuals():
    """Residuals that vary little are supported at once, those that vary much are not."""
    residuals = (np.array([-0.01, 0.01]), np.array([-100.0, 100.0]))
    family = Family("made up", np.ones(2), np.zeros(2, bool), residuals)
    supported = simulate(np.random.default_rng(4), family, "stored residuals", (8, 16, 24), 2.0, 200)
    assert supported[:, 0].all()
    assert supported[:, 1].mean() < 0.1


def test_false_support_of_proportions_at_the_margin():
    criterion = collapses("arm", "control", role="primary")
    family = Family(
        "made up", np.zeros(0), np.zeros(0, bool), (), ((criterion, Proportion(6, 24, 0.0, 24)),) * 6
    )
    at_margin, beyond = (
        simulate(np.random.default_rng(3), family, "normal", (8, 16, 24), times, 800) for times in (1.0, 2.0)
    )
    assert at_margin.any(1).sum() <= binomial_interval(800, 0.025, 1e-4)[1]
    claimed = power_of_proportion(
        family.proportions[0][1], criterion, 0.5, 24, Looks((8, 16, 24)).nominal(0.05 / 6, 24)
    )
    assert beyond.mean() >= binomial_interval(4800, claimed, 1e-4)[0] / 4800


@pytest.mark.parametrize("paper", ["hacking", "lr", "vexact", "acrl", "cancel", "recent"])
def test_stored_rates_keep_the_error(paper):
    rates = Results(committed_results("decision_rule")).table("rates")
    own = rates[rates["paper"] == paper]
    assert (own["studies"] >= 1000).all()
    assert (own["false_support"] <= 0.05).all()


def test_stored_rates_keep_the_claimed_power():
    rates = Results(committed_results("decision_rule")).table("rates")
    assert set(rates["paper"]) == {"hacking", "lr", "vexact", "acrl", "cancel", "recent"}
    full = rates[(rates["design"] == "16 and 24 policies") & rates["power"].notna()]
    assert (full["power"] >= full["claimed_power"] - 0.03).all()
