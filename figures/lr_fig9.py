"""The triggered schedule with two periods: 1.8 and 4 times the step of the surge (lr Fig. 9)."""

from matplotlib.figure import Figure

from figures.arms import LPD, RATE, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("length: no schedule", "length: triggered", "length: triggered late")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, LPD, RATE))
