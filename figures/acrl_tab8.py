"""Discrepancy of a BF16 run, were its rollouts in FP8, along the run (acrl Tab. 8)."""

from matplotlib.figure import Figure

from figures.arms import watched_curves
from figures.style import COLORS, new_figure
from simlab.core.results import Results


def draw(results: Results) -> Figure:
    curves = watched_curves(results, "BF16 control", "discrepancy_fp8")
    figure, axis = new_figure()
    axis.plot(curves, color=COLORS[0], lw=0.8, alpha=0.6)
    axis.plot(curves.mean(axis=1), color=COLORS[1], label="mean")
    axis.set(xlabel="step", ylabel="discrepancy d under FP8", ylim=(0, None))
    axis.legend()
    return figure
