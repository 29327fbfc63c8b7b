"""The rate halved at intervals, without correction and with two (lr Fig. 7, 11, 12)."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, LPD, REWARD, draw_panels
from simlab.core.results import Results

ARMS = tuple(
    f"{name}{how}" for name in ("no correction", "token MIS", "token TIS") for how in ("", ", halving")
)


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, LPD, ENTROPY), height=2.6)
