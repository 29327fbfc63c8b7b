"""Reward where two spellings are right, DFPO beside its rivals (cancel Tab. 1)."""

from matplotlib.figure import Figure

from figures.arms import against, by_start, draw_against
from figures.style import new_figure
from simlab.core.results import Results

GSPO = "two_spellings: GSPO"
PAIRS = against(
    GSPO,
    [
        GSPO,
        *(f"two_spellings: {name}" for name in ("GRPO", "GRPO-fix", "DFPO without transform", "DFPO min")),
    ],
)


def draw(results: Results) -> Figure:
    figure, axis = new_figure(height=1.9)
    draw_against(axis, by_start(results, "reward"), PAIRS, "reward, last quarter,\nless that of GSPO")
    return figure
