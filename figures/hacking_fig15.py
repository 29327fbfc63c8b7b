"""More curves of the arms of Fig. 2 (hacking Fig. 15)."""

from matplotlib.figure import Figure

from figures.arms import LPD, NORM, Panel, draw_panels
from simlab.core.results import Results

ARMS = ("no correction", "token TIS", "GSPO", "BF16 control")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (LPD, NORM, Panel("std_rho", "std $\\rho$", log=True)))
