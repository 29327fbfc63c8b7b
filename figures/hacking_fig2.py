"""Reward, entropy and mismatch with and without correction (hacking Fig. 2)."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, MISMATCH, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("long: no correction", "long: token TIS", "long: GSPO", "long: BF16 control")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, ENTROPY, MISMATCH))
