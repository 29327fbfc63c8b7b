"""The schedule that length triggers beside none (lr Fig. 7)."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, LPD, RATE, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("length: no schedule", "length: triggered", "length: BF16")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, LPD, ENTROPY, RATE))
