"""The triggered schedule with two periods in a wider model (lr Fig. 10)."""

from matplotlib.figure import Figure

from figures.arms import LPD, RATE, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("length, wide: no schedule", "length, wide: triggered", "length, wide: triggered late")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, LPD, RATE))
