"""Reward of DFPO without its parts (cancel Tab. 3)."""

from matplotlib.figure import Figure

from figures.arms import against, by_start, draw_against
from figures.style import new_figure
from simlab.core.results import Results

GSPO = "template: GSPO"
NAMES = ("DFPO min", "DFPO without transform", "DFPO min, no stop", "GSPO scaled")
PAIRS = against(GSPO, [GSPO, *(f"template: {name}" for name in NAMES)])


def draw(results: Results) -> Figure:
    figure, axis = new_figure(height=1.9)
    draw_against(axis, by_start(results, "reward"), PAIRS, "reward, last quarter,\nless that of GSPO")
    return figure
