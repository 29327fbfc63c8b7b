"""ACRL on GRPO, PPO and DAPO (acrl Tab. 4), with other distances, and a penalty in its place."""

from matplotlib.figure import Figure

from figures.arms import against, by_start, draw_against
from figures.style import PAGE, new_figure
from simlab.core.results import Results

PAIRS = {
    "long: ACRL 0.35": "long: no correction",
    "long: PPO, ACRL": "long: PPO",
    "long: DAPO, ACRL": "long: DAPO",
} | against(
    "long: no correction",
    ("ACRL, squared", "ACRL, KL", "ACRL, moving X", "penalized discrepancy"),
)


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 2.4, ncols=2, sharey=True)
    for axis, metric in zip(axes, ("reward", "discrepancy"), strict=True):
        draw_against(axis, by_start(results, metric), PAIRS, f"{metric}, last quarter, less that without it")
    return figure
