"""Discrepancy, entropy and reward under the truncated dose (acrl Fig. 11, Tab. 2)."""

from matplotlib.figure import Figure

from figures.arms import DISCREPANCY, ENTROPY, REWARD, draw_panels
from simlab.core.results import Results

ARMS = (
    "long: no correction",
    "long: token TIS at 5",
    "long: sequence MIS",
    "long: ACRL 0.35",
    "long: BF16 control",
)


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (DISCREPANCY, ENTROPY, REWARD))
