"""The schedule that length triggers beside none, in a wider model (lr Fig. 8)."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, LPD, RATE, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("length, wide: no schedule", "length, wide: triggered")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, LPD, ENTROPY, RATE))
