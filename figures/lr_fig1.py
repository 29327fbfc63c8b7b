"""Reward, log_ppl_abs_diff and gradient norm of the run that falls (lr Fig. 1, 3)."""

from matplotlib.figure import Figure

from figures.arms import LPD, NORM, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("no correction", "BF16 control")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, LPD, NORM))
