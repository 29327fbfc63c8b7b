"""Reward and log_ppl_abs_diff at the rate and at a tenth of it (lr Fig. 4)."""

from matplotlib.figure import Figure

from figures.arms import LPD, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("long: no correction", "long: rate / 10")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, LPD))
