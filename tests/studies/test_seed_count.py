"""The power helper against simulated experiments."""

import numpy as np
import pytest
from scipy import stats

from simlab.studies.seed_count import power_of, seeds_needed
from tests.tolerances import binomial_interval

TRIALS = 4000
FALSE_ALARM = 1e-6


def share_of_detections(seeds, effect, spread, paired):
    rng = np.random.default_rng([seeds, paired])
    first, second = rng.normal(0, spread, (2, TRIALS, seeds)) / (np.sqrt(2) if paired else 1)
    test = stats.ttest_rel if paired else stats.ttest_ind
    return int((test(first + effect, second, axis=1).pvalue < 0.05).sum())


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("effect", [0.0, 0.5, 1.5])
def test_power_is_the_fraction_of_detections(effect, paired):
    seeds, spread = 7, 0.8
    expected = power_of(seeds, effect, spread, paired=paired) if effect else 0.05
    low, high = binomial_interval(TRIALS, expected, FALSE_ALARM)
    assert low <= share_of_detections(seeds, effect, spread, paired) <= high


@pytest.mark.parametrize("paired", [False, True])
def test_seeds_needed_is_the_fewest(paired):
    rng = np.random.default_rng(0)
    pilot, other = rng.normal(size=(2, 5))
    found = seeds_needed(0.7, pilot, other, paired=paired)
    assert found.power >= 0.8 > power_of(found.seeds - 1, 0.7, found.std, paired=paired)
    assert found.paired is paired


def test_confidence_adds_seeds_and_pairing_saves_them():
    common = np.asarray([0.1, 0.9, 0.4, 0.6])
    other = common + np.asarray([0.20, 0.22, 0.19, 0.21])
    assert seeds_needed(0.2, common, other, paired=True).seeds < seeds_needed(0.2, common, other).seeds
    assert seeds_needed(0.2, common, confidence=0.8).seeds > seeds_needed(0.2, common).seeds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0.1, [1.0]), {}), "at least 2 runs"),
        (((0.1, [1.0, np.nan]), {}), "all finite"),
        (((0.0, [1.0, 2.0]), {}), "an effect above 0"),
        (((0.1, [1.0, 2.0]), {"paired": True}), "two arms of the same seeds"),
        (((1e-6, [1.0, 2.0]), {}), "needs over 10000 seeds"),
    ],
)
def test_seeds_needed_rejects_unusable_pilots(arguments, message):
    given, options = arguments
    with pytest.raises(ValueError, match=message):
        seeds_needed(*given, **options)
