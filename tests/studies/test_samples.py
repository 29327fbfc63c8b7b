"""Samples against brute force and scipy, and verdicts against the definition of their intervals."""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from simlab.studies.samples import (
    Exact,
    Proportion,
    RatioOfMeans,
    StoredInterval,
    mean_of_policies,
    needed_t,
    ratio_t_p,
    skewed_t_p,
    skewness,
    t_p,
)
from simlab.studies.sign_flips import flip_count, flip_p
from simlab.studies.verdicts import criterion_verdict
from tests.tolerances import binomial_interval

VALUES = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=10)
MARGINS = st.floats(0.01, 3)


def _fieller_interval(sample, alpha):
    return sample._fieller_ends(float(stats.t.isf(alpha / 2, sample.num_policies - 1)))


@given(VALUES)
def test_flip_count_equals_brute_force(values):
    x = np.array(values)
    bound = x.sum() - 1e-9
    assert flip_count(x) == (
        sum(float(np.array(signs) @ x) >= bound for signs in product((1, -1), repeat=len(x))),
        2 ** len(x),
    )


def test_flip_p_equals_scipy_and_samples_beyond_32_values():
    x = np.random.default_rng(0).normal(0.3, 1, 10)
    expected = stats.permutation_test(
        (x,), np.mean, permutation_type="samples", alternative="greater", n_resamples=np.inf
    ).pvalue
    assert flip_p(x) == pytest.approx(2 * expected)
    many = np.random.default_rng(1).normal(0.3, 1, 40)
    assert flip_p(many) == pytest.approx(stats.ttest_1samp(many, 0).pvalue, abs=0.02)


def test_flip_p_of_24_values_is_exact_where_all_are_positive():
    assert flip_count(np.linspace(0.1, 1, 24)) == (1, 2**24)


@given(VALUES, st.floats(0.001, 0.2))
@settings(max_examples=50, deadline=None)
def test_interval_contains_students_and_the_estimate(values, alpha):
    x = np.array(values)
    low, high = mean_of_policies(x).interval(alpha)
    slack = 1e-9 + 1e-9 * np.abs(x).max()
    if x.std() > 0:
        expected = stats.t.interval(1 - alpha, len(x) - 1, x.mean(), stats.sem(x))
        assert low <= expected[0] + slack
        assert high >= expected[1] - slack
    assert low - slack <= x.mean() <= high + slack


@given(VALUES, MARGINS, st.sampled_from([0.05, 0.005]))
@settings(max_examples=80, deadline=None)
def test_supported_is_agreement_of_both_tests(values, margin, alpha):
    """The interval lies beyond the margin where t-test and sign flips both reject at the level."""
    sample = mean_of_policies(np.array(values))
    low, _ = sample.interval(alpha)
    if abs(low - margin) > 1e-3 * max(1.0, abs(low)):
        assert (low > margin) == (sample.p_beyond(margin, 1) <= alpha)


@given(VALUES, st.floats(-1, 1), st.sampled_from([0.05, 0.005]))
@settings(max_examples=60, deadline=None)
def test_intervals_of_mirrored_values_are_mirrored(values, shift, alpha):
    low, high = mean_of_policies(np.array(values) + shift).interval(alpha)
    other = mean_of_policies(-np.array(values) - shift).interval(alpha)
    assert (low, high) == pytest.approx((-other[1], -other[0]), rel=1e-3, abs=1e-3)


def test_few_policies_need_one_sign_and_reach_no_small_level():
    values = np.array([0.5, 0.52, 0.48, 0.51, 0.49, 0.5, 0.53, 0.47])
    assert mean_of_policies(values).p_beyond(0.2, 1) == 2 / 2**8
    assert mean_of_policies(values).interval(2 / 2**8)[0] > 0.2
    assert mean_of_policies(values).interval(0.001) == (-np.inf, np.inf)
    other = mean_of_policies(np.append(values[:-1], 0.19))
    assert other.p_beyond(0.2, 1) >= 4 / 2**8
    assert other.interval(2 / 2**8)[0] < 0.2


def test_ratio_is_fieller_where_flips_agree():
    rng = np.random.default_rng(2)
    below = rng.normal(1, 0.3, 24)
    above = 0.5 * below + rng.normal(0, 0.2, 24)
    low, high = RatioOfMeans(above, below).interval(0.05)
    for end in (low, high):
        t = stats.ttest_1samp(above - end * below, 0).pvalue
        assert t <= 0.0501
    assert RatioOfMeans(above, np.ones(24)).interval(0.05) == pytest.approx(
        mean_of_policies(above).interval(0.05), rel=1e-3
    )


@given(st.integers(0, 10_000), st.floats(-0.5, 1), st.sampled_from([0.05, 0.005, 1e-4]))
@settings(max_examples=60, deadline=None)
def test_ratio_is_supported_where_its_interval_is(seed, margin, alpha):
    rng = np.random.default_rng(seed)
    below = rng.normal(0.5, 0.4, 16)
    sample = RatioOfMeans(0.6 * below + rng.normal(0, 0.1, 16), below)
    low, high = sample.interval(alpha)
    if min(abs(low - margin), abs(high - margin)) > 1e-3:
        assert (low > margin) == (sample.p_beyond(margin, 1) <= alpha)
        assert (high < margin) == (sample.p_beyond(margin, -1) <= alpha)


def test_fieller_interval_covers_as_often_as_it_says():
    rng, hits, draws = np.random.default_rng(0), 0, 2000
    for _ in range(draws):
        below = rng.normal(0.5, 0.2, 16)
        low, high = _fieller_interval(RatioOfMeans(0.6 * below + rng.normal(0, 0.1, 16), below), 0.1)
        hits += np.isfinite(low) and low <= 0.6 <= high
    assert hits / draws == pytest.approx(0.9, abs=0.03)


def test_fieller_interval_is_unbounded_without_a_loss():
    below = np.array([-1.0, 1.0, 0.5, -0.6])
    assert _fieller_interval(RatioOfMeans(np.ones(4), below), 0.05) == (-np.inf, np.inf)


def test_ratio_is_unbounded_without_a_loss():
    rng = np.random.default_rng(3)
    assert RatioOfMeans(rng.normal(0, 1, 8), rng.normal(0, 1, 8)).interval(0.05) == (-np.inf, np.inf)


def test_coverage_of_means_and_ratios():
    """Intervals of 95% contain the truth in at least 95% of skewed studies; false alarm 1e-4."""
    rng, trials, hits = np.random.default_rng(4), 400, np.zeros(2)
    for _ in range(trials):
        below = rng.gamma(4, 0.25, 16)
        above = 0.4 * below + rng.normal(0, 0.3, 16)
        for index, (sample, truth) in enumerate(
            ((mean_of_policies(above), 0.4), (RatioOfMeans(above, below), 0.4))
        ):
            low, high = sample.interval(0.05)
            hits[index] += low <= truth <= high
    assert (hits >= binomial_interval(trials, 0.95, 1e-4)[0]).all()


@pytest.mark.parametrize("count", [0, 3, 12, 24])
def test_proportion_equals_scipy(count):
    sample = Proportion(count, 24, 0.0, 24)
    expected = stats.binomtest(count, 24).proportion_ci(0.95, "exact")
    assert sample.interval(0.05) == pytest.approx((expected.low, expected.high))
    greater = stats.binomtest(count, 24, 0.25, alternative="greater").pvalue
    assert sample.p_beyond(0.25, 1) == pytest.approx(min(1.0, 2 * greater))
    assert sample.p_beyond(-0.1, 1) == 0
    assert sample.p_beyond(1.1, -1) == 0


def test_discordant_pairs_give_mcnemars_test():
    sample = Proportion(14, 16, 0.5, 24)
    assert sample.p_beyond(0.0, 1) == pytest.approx(stats.binomtest(14, 16, 0.5).pvalue)
    assert sample.estimate == 14 / 16 - 0.5
    assert Proportion(0, 0, 0.5, 24).interval(0.05) == (-0.5, 0.5)


def test_stored_intervals_scale_with_the_level():
    sample = StoredInterval(1.0, 0.5, 1.5)
    assert sample.interval(0.05) == pytest.approx((0.5, 1.5))
    assert sample.p_beyond(0.5, 1) == pytest.approx(0.05)
    low, high = sample.interval(0.005)
    assert low < 0.5 < 1.5 < high
    assert Exact(0.3).interval(0.01) == (0.3, 0.3)


@pytest.mark.parametrize(
    ("low", "high", "direction", "verdict"),
    [
        (0.2, 0.9, "positive", "supported"),
        (0.2, 0.9, "negative", "contradicted"),
        (-0.9, -0.2, "positive", "contradicted"),
        (-0.9, -0.2, "negative", "supported"),
        (-0.05, 0.08, "positive", "negligible"),
        (0.01, 0.08, "positive", "negligible"),
        (0.05, 0.2, "positive", "inconclusive"),
        (-0.05, 0.2, "negative", "inconclusive"),
        (-0.05, 0.08, "zero", "supported"),
        (0.2, 0.9, "zero", "contradicted"),
        (0.05, 0.9, "zero", "inconclusive"),
        (-np.inf, np.inf, "positive", "inconclusive"),
        (-0.9, -0.2, "at most", "supported"),
        (-0.05, 0.08, "at most", "supported"),
        (0.05, 0.2, "at most", "inconclusive"),
        (0.2, 0.9, "at most", "contradicted"),
    ],
)
def test_verdict_follows_the_interval_and_the_margin(low, high, direction, verdict):
    assert criterion_verdict((low, high), direction, 0.1) == verdict


@given(st.floats(-2, 2), st.floats(0, 2), MARGINS, st.sampled_from(["positive", "negative", "zero"]))
def test_verdict_is_mirrored_with_the_direction(low, width, margin, direction):
    mirrored = {"positive": "negative", "negative": "positive", "zero": "zero"}[direction]
    ends = (low, low + width)
    assert criterion_verdict(ends, direction, margin) == criterion_verdict(
        (-ends[1], -ends[0]), mirrored, margin
    )


def test_correction_for_skewness_keeps_the_error_rate():
    # Most policies keep their reward and a few lose it: a mean of zero with a long tail below.
    rng, studies, alpha = np.random.default_rng(4), 3000, 0.02
    values = 0.25 - rng.gamma(0.25, 1.0, (studies, 24))
    plain, corrected = ((p <= alpha / 2).sum() for p in (t_p(values), skewed_t_p(values, skewness(values))))
    assert plain > binomial_interval(studies, alpha / 2, 1e-4)[1]
    assert corrected < plain / 2
    np.testing.assert_allclose(skewed_t_p(values, 0.0), t_p(values))


def test_interval_of_skewed_contrasts_inverts_the_corrected_test():
    values = 1 - np.random.default_rng(5).gamma(0.3, 1.0, 24)
    sample = mean_of_policies(values)
    (low, high), (plain_low, plain_high) = sample.interval(0.05), _fieller_interval(sample, 0.05)
    assert low < plain_low
    assert high >= plain_high
    assert 2 * skewed_t_p(values - low, sample.skewness) == pytest.approx(0.05)


def test_a_denominator_is_tested_with_its_own_skewness():
    """Its few low values count, though the numerator has them as well and the contrasts are symmetric."""
    rng = np.random.default_rng(6)
    below = 1.6 - rng.gamma(0.25, 2.0, 24)
    sample = RatioOfMeans(0.5 * below + rng.normal(0, 0.1, 24), below)
    own = 2 * skewed_t_p(below, skewness(below))
    assert 2 * skewed_t_p(below, sample.skewness) < own / 3
    assert sample.p_beyond(0.0, 1) == pytest.approx(own)
    assert sample.interval(own * 0.9) == (-np.inf, np.inf)
    assert np.isfinite(sample.interval(own * 1.1)).all()


@given(st.integers(0, 99), st.floats(-1, 1), st.sampled_from([1, -1]))
def test_p_of_many_ratios_are_those_of_their_samples(seed, bound, side):
    above, below = np.random.default_rng(seed).normal(0.5, 1.0, (2, 3, 10))
    tested = ratio_t_p(above, below, bound, side)
    for number in range(3):
        sample = RatioOfMeans(above[number], below[number])
        flips = max(
            flip_p(side * sample.contrasts(bound)), flip_p(np.sign(below[number].mean()) * below[number])
        )
        assert sample.p_beyond(bound, side) == pytest.approx(min(1.0, max(float(tested[number]), flips)))


@given(VALUES.filter(lambda values: len(set(values)) > 1))
def test_t_p_equals_scipy_along_the_last_axis(values):
    x = np.array([values, [-value for value in values]])
    expected = stats.ttest_1samp(x, 0, axis=-1, alternative="greater").pvalue
    np.testing.assert_allclose(t_p(x), expected, rtol=1e-9, atol=1e-12)


def test_t_tests_of_equal_values_decide_by_their_sign():
    equal = np.array([[1.0] * 4, [0.0] * 4, [-1.0] * 4])
    np.testing.assert_array_equal(skewness(equal), 0)
    for p_values in (t_p(equal), skewed_t_p(equal, 1.0)):
        np.testing.assert_array_equal(p_values, [0, 1, 1])


@given(VALUES.filter(lambda values: len(values) > 2))
def test_skewness_equals_scipy(values):
    x = np.array(values)
    if x.std() > 1e-3:
        assert skewness(x) == pytest.approx(stats.skew(x, bias=False), abs=1e-9)


@example(0.05, 24, -1e-14)
@given(st.floats(1e-6, 0.5), st.integers(4, 40), st.floats(-2, 2))
def test_needed_t_inverts_both_t_tests(alpha, count, skew):
    """At the needed t the larger p-value of the two tests is alpha."""
    values = np.linspace(-1, 1, count)
    error = values.std(ddof=1) / np.sqrt(count)
    values = values - values.mean() + needed_t(alpha, count, skew) * error
    assert 2 * max(t_p(values), skewed_t_p(values, skew)) == pytest.approx(alpha, rel=1e-6)
