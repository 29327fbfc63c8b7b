"""Rare tokens weigh more, on top of GSPO (hacking Fig. 5)."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, MISMATCH, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("long: GSPO", "long: GSPO, delta 1.2", "long: GSPO, delta 2", "long: GSPO, delta 3")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, ENTROPY, MISMATCH))
