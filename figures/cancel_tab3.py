"""Reward of DFPO without its parts (cancel Tab. 3)."""

from matplotlib.figure import Figure

from figures.arms import draw_ends
from figures.style import new_figure
from simlab.core.results import Results

ARMS = tuple(
    f"template: {name}"
    for name in ("DFPO min", "DFPO without transform", "DFPO min, no stop", "GSPO scaled", "GSPO")
)


def draw(results: Results) -> Figure:
    figure, axis = new_figure(height=1.7)
    draw_ends(axis, results, ARMS, "reward")
    axis.set(xlabel="reward, last quarter")
    return figure
