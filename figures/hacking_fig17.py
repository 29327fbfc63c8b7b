"""More measures of the arms of Fig. 5 (hacking Fig. 17)."""

from matplotlib.figure import Figure

from figures.arms import EXTENDED, draw_panels
from simlab.core.results import Results

ARMS = ("long: GSPO", "long: GSPO, delta 1.2", "long: GSPO, delta 2", "long: GSPO, delta 3")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, EXTENDED)
