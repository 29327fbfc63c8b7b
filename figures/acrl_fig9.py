"""Discrepancy under nearest FP8 (acrl Fig. 9)."""

from matplotlib.figure import Figure

from figures.arms import DISCREPANCY, draw_panels
from simlab.core.results import Results

ARMS = ("long: FP8", "long: FP8, token TIS", "long: FP8, token MIS", "long: FP8, ACRL", "long: BF16 control")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (DISCREPANCY,), height=2.6)
