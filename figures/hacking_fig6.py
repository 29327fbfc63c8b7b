"""The monitor J with the weights of delta = 2, where they are injected and where not (hacking Fig. 6)."""

from matplotlib.figure import Figure

from figures.arms import watched_of
from figures.style import COLORS, DASHES, MARKERS, MUTED, new_figure
from simlab.core.results import Results

ARMS = ("GSPO, delta 2", "GSPO")


def draw(results: Results) -> Figure:
    figure, axis = new_figure()
    for look, arm in enumerate(ARMS):
        seen = watched_of(results, arm)
        color, means = COLORS[look], seen.groupby("step")["hacking_j"].mean()
        axis.plot(seen["step"], seen["hacking_j"], MARKERS[look], color=color, alpha=0.5, mew=0, ms=3)
        axis.plot(means.index, means, color=color, ls=DASHES[look], label=arm)
    axis.axhline(0, color=MUTED, lw=0.8)
    axis.set(xlabel="step", ylabel="J")
    axis.legend()
    return figure
