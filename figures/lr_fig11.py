"""The rate halved at intervals, without correction and with token MIS (lr Fig. 11)."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, LPD, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("long: no correction", "long: no correction, halving", "long: token MIS", "long: token MIS, halving")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, LPD, ENTROPY))
