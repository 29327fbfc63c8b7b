"""Weights of tokens with noise of mean one, on top of GSPO (hacking Fig. 12)."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, MISMATCH, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("long: GSPO", "long: GSPO, weight noise")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, ENTROPY, MISMATCH))
