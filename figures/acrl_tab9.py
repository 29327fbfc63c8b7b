"""Discrepancy, entropy and reward under ACRL of several strengths (acrl Tab. 9)."""

from matplotlib.figure import Figure

from figures.arms import DISCREPANCY, ENTROPY, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("long: ACRL 0.1", "long: ACRL 0.35", "long: ACRL 1.0", "long: ACRL 2.1", "long: no correction")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (DISCREPANCY, ENTROPY, REWARD))
