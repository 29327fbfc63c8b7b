"""Rare tokens without weight, and with twice as much, on top of GSPO (hacking Fig. 10)."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, MISMATCH, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("long: GSPO", "long: GSPO, delta 2", "long: GSPO, delta 0")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, ENTROPY, MISMATCH))
