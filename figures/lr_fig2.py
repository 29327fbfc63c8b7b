"""Reward and log_ppl_abs_diff under corrections (lr Fig. 2)."""

from matplotlib.figure import Figure

from figures.arms import LPD, REWARD, draw_panels
from simlab.core.results import Results

ARMS = (
    "long: no correction",
    "long: token TIS",
    "long: token MIS",
    "long: sequence TIS",
    "long: sequence MIS",
    "long: BF16 control",
)


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, LPD), height=2.6)
