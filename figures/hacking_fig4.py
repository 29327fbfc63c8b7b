"""Reward and mismatch under token clips of two strengths and under sequence clips (hacking Fig. 4)."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, MISMATCH, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("no correction", "clip 0.24", "clip 0.28", "GSPO")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, ENTROPY, MISMATCH))
