"""The rate halved at intervals with token TIS (lr Fig. 12)."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, LPD, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("long: no correction", "long: token TIS", "long: token TIS, halving")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, LPD, ENTROPY))
