"""More measures of the arms of Fig. 2 (hacking Fig. 15)."""

from matplotlib.figure import Figure

from figures.arms import EXTENDED, draw_panels
from simlab.core.results import Results

ARMS = ("long: no correction", "long: token TIS", "long: GSPO", "long: BF16 control")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, EXTENDED)
