"""ACRL on GRPO, PPO and DAPO (acrl Tab. 4), with other distances, and a penalty in its place."""

from matplotlib.figure import Figure

from figures.arms import draw_ends
from figures.style import PAGE, new_figure
from simlab.core.results import Results

PAIRS = (("no correction", "ACRL 0.35"), ("PPO", "PPO, ACRL"), ("DAPO", "DAPO, ACRL"))
OTHERS = ("ACRL, squared", "ACRL, KL", "ACRL, moving X", "penalized discrepancy")


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 2.4, ncols=2, sharey=True)
    arms = [arm for pair in PAIRS for arm in pair] + list(OTHERS)
    for axis, metric in zip(axes, ("reward", "discrepancy"), strict=True):
        draw_ends(axis, results, arms, metric)
        axis.set(xlabel=f"{metric}, last quarter")
    return figure
