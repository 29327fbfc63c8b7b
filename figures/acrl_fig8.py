"""Entropy under ACRL and its rivals (acrl Fig. 8)."""

from matplotlib.figure import Figure

from figures.arms import ENTROPY, draw_panels
from simlab.core.results import Results

ARMS = ("long: ACRL 0.35", "long: token TIS at 5", "long: sequence MIS", "long: BF16 control")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (ENTROPY,))
