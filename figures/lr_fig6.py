"""Length of responses where length pays, in models of two widths (lr Fig. 6)."""

from matplotlib.figure import Figure

from figures.arms import REWARD, Panel, draw_panels
from simlab.core.results import Results

ARMS = ("length: no schedule", "length, wide: no schedule", "length: BF16")
LENGTH = Panel("response_length", "response length in tokens")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (LENGTH, REWARD))
