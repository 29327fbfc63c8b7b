"""Reward and entropy with a reference X that is off by a quarter (acrl Tab. 7)."""

from matplotlib.figure import Figure

from figures.arms import draw_ends
from figures.style import PAGE, new_figure
from simlab.core.results import Results

ARMS = ("ACRL, 0.75 X", "ACRL 0.35", "ACRL, 1.25 X", "no correction")


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 1.6, ncols=2, sharey=True)
    for axis, metric in zip(axes, ("reward", "entropy"), strict=True):
        draw_ends(axis, results, ARMS, metric)
        axis.set(xlabel=f"{metric}, last quarter")
    return figure
