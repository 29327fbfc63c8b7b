"""Gradient norm of the run that falls, and where its reward is best (lr Fig. 3)."""

from matplotlib.figure import Figure

from figures.arms import NORM, curves, draw_panels, mark_best
from simlab.core.results import Results

ARMS = ("long: no correction", "long: BF16 control")


def draw(results: Results) -> Figure:
    figure = draw_panels(results, ARMS, (NORM,))
    mark_best(figure.axes[0], curves(results, ARMS, "reward"), ARMS[0])
    return figure
