"""Discrepancy, entropy and reward under ACRL and others (acrl Fig. 8-10), and over gamma (Tab. 9)."""

from matplotlib.figure import Figure

from figures.arms import draw_arms
from figures.style import PAGE, new_figure
from simlab.core.results import Results

TRUNCATED = ("no correction", "token TIS at 5", "sequence MIS", "ACRL 0.35", "BF16 control")
GAMMAS = ("ACRL 0.1", "ACRL 0.35", "ACRL 1.0", "ACRL 2.1")
PANELS = {"discrepancy": "discrepancy d", "entropy": "entropy in nats", "reward": "reward"}


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 4.4, nrows=2, ncols=3)
    for row, arms in zip(axes, (TRUNCATED, GAMMAS), strict=True):
        for axis, (metric, label) in zip(row, PANELS.items(), strict=True):
            draw_arms(axis, results, arms, metric, labels=metric == "reward")
            axis.set(ylabel=label)
        row[2].set(ylim=(0, 1.1))
        row[2].legend(fontsize=6, loc="upper right", ncols=2, columnspacing=1, handlelength=1.6)
    return figure
