"""Runs forked halfway: as they were, on other data, without mismatch or distortion (hacking Fig. 8)."""

from matplotlib.figure import Figure

from figures.arms import MISMATCH, NORM, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("long: no correction", "fork, other data", "fork, mismatch cut", "fork, distortion cut")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, MISMATCH, NORM))
