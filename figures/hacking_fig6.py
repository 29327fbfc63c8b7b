"""The monitor J with the weights of delta = 2, where they are injected and where not (hacking Fig. 6)."""

from matplotlib.figure import Figure

from figures.arms import watched_curves
from figures.style import COLORS, DASHES, MARKERS, MUTED, new_figure
from simlab.core.results import Results

ARMS = ("GSPO, delta 2", "GSPO")


def draw(results: Results) -> Figure:
    figure, axis = new_figure()
    for look, arm in enumerate(ARMS):
        curves = watched_curves(results, arm, "hacking_j")
        color, means = COLORS[look], curves.mean(axis=1)
        axis.plot(curves, MARKERS[look], color=color, alpha=0.5, mew=0, ms=3)
        axis.plot(means.index, means, color=color, ls=DASHES[look], label=arm)
    axis.axhline(0, color=MUTED, lw=0.8)
    axis.set(xlabel="step", ylabel="J")
    axis.legend()
    return figure
