"""Correlation of pi_train and pi_infer, and the largest rho, along the run (hacking Fig. 9)."""

from matplotlib.figure import Figure

from figures.arms import Panel, draw_panels
from simlab.core.results import Results

ARMS = ("long: no correction", "long: token TIS", "long: GSPO", "long: BF16 control")
PCC = Panel("pcc", "PCC of $\\pi_{train}$ and $\\pi_{infer}$")
LARGEST = Panel("max_rho", "largest $\\rho$ of 10 steps", log=True)


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (PCC, LARGEST))
