"""Discrepancy, entropy and reward with ACRL's Y per sequence, group and batch."""

from matplotlib.figure import Figure

from figures.arms import DISCREPANCY, ENTROPY, REWARD, draw_panels
from simlab.core.results import Results

ARMS = (
    "long: no correction",
    "long: ACRL per sequence",
    "long: ACRL 0.35",
    "long: ACRL per batch",
    "long: BF16 control",
)


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (DISCREPANCY, ENTROPY, REWARD))
