"""Correlation of pi_train and pi_infer, largest rho, and clusters of pi_infer (hacking Fig. 3, 9)."""

from matplotlib.figure import Figure

from figures.arms import draw_arms, watched_curves
from figures.style import COLORS, DASHES, PAGE, new_figure
from simlab.core.results import Results

ARMS = ("no correction", "token TIS", "GSPO", "BF16 control")
SIDES = {"shared_values": "$\\pi_{infer}$", "shared_values_train": "$\\pi_{train}$"}


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 2.4, ncols=3)
    draw_arms(axes[0], results, ARMS, "pcc", labels=True)
    draw_arms(axes[1], results, ARMS, "max_rho")
    for look, (metric, label) in enumerate(SIDES.items()):
        curves = watched_curves(results, ARMS[0], metric)
        axes[2].plot(curves, color=COLORS[look], ls=DASHES[look], lw=0.8)
        axes[2].plot([], color=COLORS[look], ls=DASHES[look], label=label)
    axes[0].set(ylabel="correlation of $\\pi_{train}$ and $\\pi_{infer}$")
    axes[1].set(ylabel="largest $\\rho$ of 10 steps", yscale="log")
    axes[2].set(xlabel="step", ylabel="share with another's value")
    axes[2].legend(title="without correction, each run", title_fontsize=6, fontsize=6)
    axes[0].legend(fontsize=6)
    return figure
