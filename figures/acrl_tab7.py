"""Reward and entropy with a reference X that is off by a quarter (acrl Tab. 7)."""

from matplotlib.figure import Figure

from figures.arms import against, by_start, draw_against
from figures.style import PAGE, new_figure
from simlab.core.results import Results

RIGHT = "long: ACRL 0.35"
PAIRS = against(RIGHT, ("long: ACRL, 0.75 X", RIGHT, "long: ACRL, 1.25 X"))


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 1.5, ncols=2, sharey=True)
    for axis, metric in zip(axes, ("reward", "entropy"), strict=True):
        draw_against(axis, by_start(results, metric), PAIRS, f"{metric}, last quarter, less that with X")
    return figure
