"""The monitor J with the weights of delta = 2, where they are injected and where not (hacking Fig. 6)."""

from matplotlib.figure import Figure

from figures.arms import Panel, draw_panels
from figures.style import MUTED
from simlab.core.results import Results

ARMS = ("long: GSPO, delta 2", "long: GSPO")
MONITOR = Panel("hacking_j", "J at delta = 2")


def draw(results: Results) -> Figure:
    figure = draw_panels(results, ARMS, (MONITOR,), table="watched")
    figure.axes[0].axhline(0, color=MUTED, lw=0.8)
    return figure
