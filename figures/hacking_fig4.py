"""Reward, entropy and mismatch under two token clips and a sequence clip (hacking Fig. 4)."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, MISMATCH, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("long: no correction", "long: clip 0.28", "long: GSPO")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, ENTROPY, MISMATCH))
