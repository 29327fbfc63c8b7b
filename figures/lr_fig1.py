"""Reward and log_ppl_abs_diff of the run that falls (lr Fig. 1)."""

from matplotlib.figure import Figure

from figures.arms import LPD, REWARD, curves, draw_panels, mark_best
from simlab.core.results import Results

ARMS = ("long: no correction", "long: BF16 control")


def draw(results: Results) -> Figure:
    figure = draw_panels(results, ARMS, (REWARD, LPD))
    for axis in figure.axes:
        mark_best(axis, curves(results, ARMS, "reward"), ARMS[0])
    return figure
