"""Share of the tokens that the clip cuts off, along the run (hacking Tab. 1)."""

from matplotlib.figure import Figure

from figures.arms import Panel, draw_panels
from simlab.core.results import Results

ARMS = ("long: no correction", "long: clip 0.28", "long: GSPO")
CLIPPED = Panel("clip_fraction", "share of clipped tokens", log=True)


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (CLIPPED,), table="watched")
