"""More measures of the arms of Fig. 4 (hacking Fig. 16)."""

from matplotlib.figure import Figure

from figures.arms import EXTENDED, draw_panels
from simlab.core.results import Results

ARMS = ("long: no correction", "long: clip 0.28", "long: GSPO")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, EXTENDED)
