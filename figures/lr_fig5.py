"""Reward and log_ppl_abs_diff with all prompts and with a fortieth of them (lr Fig. 5)."""

from matplotlib.figure import Figure

from figures.arms import LPD, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("long: no correction", "long: 2.5% of the prompts")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, LPD))
