"""The strategies reach their corners."""

import numpy as np
import pytest
from hypothesis import find

from tests.theory.strategies import groups, laws, pairs, weighted_groups

LAWS = {
    "equal": lambda pair: np.array_equal(*pair),
    "uniform": lambda pair: np.ptp(pair[0]) == 0,
    "a token only pi_train has": lambda pair: (pair[1] == 0).any(),
    "a token likelier than 0.99": lambda pair: (pair[0] > 0.99).any(),
    "a token rarer than 1e-5": lambda pair: (pair[0] < 1e-5).any(),
    "far apart": lambda pair: np.abs(pair[0] - pair[1]).max() > 0.9,
}
PAIRS = {
    "no mismatch": lambda pair: pair.rho_std == 0,
    "T = 1": lambda pair: pair.space.tokens.shape[1] == 1,
    "T = 3 with an end token": lambda pair: pair.space.tokens.shape[1] == 3 and not pair.space.mask.all(),
    "shared contexts": lambda pair: len(pair.space.prefixes) == 4 and pair.space.tokens.shape[1] == 3,
    "std of rho above 1": lambda pair: pair.rho_std > 1,
    "nearly deterministic": lambda pair: pair.train.max() > 0.999,
}
GROUPS = {
    "shared ratio above the clip": lambda group: group.log_ratio[0, 0] > np.log(1.2),
    "shared ratio below the clip": lambda group: group.log_ratio[0, 0] < np.log(0.8),
    "shared ratio of one": lambda group: group.log_ratio[0, 0] == 0,
    "equal rewards": lambda group: np.ptp(group.rewards) == 0,
    "one success": lambda group: group.rewards.sum() == 1 and len(group.rewards) == 8,
    "real rewards": lambda group: not np.isin(group.rewards, (0, 1)).any(),
    "ratios e apart": lambda group: np.ptp(group.log_ratio.sum(1)) > 1,
    "a pair": lambda group: len(group.rewards) == 2,
    "equal lengths": lambda group: np.ptp(group.lengths) == 0 and group.lengths[0] == 5,
    "lengths from 1 to 5": lambda group: set(group.lengths) >= {1, 5},
    "a single token": lambda group: group.log_ratio.shape[1] == 1,
}
WEIGHTS = {
    "equal weights": lambda group: np.ptp(group[0]) == 0,
    "weights 1000 apart": lambda group: group[0].max() > 1000 * group[0].min(),
    "zero advantages": lambda group: (group[1] == 0).any() and (group[1] != 0).any(),
    "all zero": lambda group: (group[1] == 0).all(),
}


@pytest.mark.parametrize(
    ("strategy", "corner"),
    [
        pytest.param(strategy, corner, id=f"{strategy.__name__}-{name}")
        for strategy, corners in ((laws, LAWS), (pairs, PAIRS), (groups, GROUPS), (weighted_groups, WEIGHTS))
        for name, corner in corners.items()
    ],
)
def test_corner_is_reached(strategy, corner):
    find(strategy(), corner)
