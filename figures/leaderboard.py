"""Reward of every remedy at one dose, one dot per run, ranked."""

from matplotlib.figure import Figure

from figures.arms import by_run
from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

BASELINE = "no correction"


def draw(results: Results) -> Figure:
    metrics = {metric: by_run(results, metric) for metric in ("reward", "rms_log_rho")}
    order = metrics["reward"].groupby("arm").mean().sort_values().index.tolist()
    figure, axes = new_figure(PAGE, 0.21 * len(order) + 1.0, ncols=2, sharey=True)
    for axis, means in zip(axes, metrics.values(), strict=True):
        axis.axvline(means[BASELINE].mean(), color=MUTED, lw=0.8)
        for row, arm in enumerate(order):
            color, values = COLORS[1] if arm == BASELINE else COLORS[0], means[arm]
            axis.plot(values, [row] * len(values), "o", color=color, ms=3, alpha=0.5, mew=0)
            axis.plot([values.mean()], [row], "|", color=color, ms=11, mew=2)
    axes[0].set(yticks=range(len(order)), yticklabels=order, xlabel="reward, last quarter")
    axes[1].set(xlabel="mismatch, last quarter: RMS log $\\rho$")
    axes[1].set_xscale("symlog", linthresh=1e-3)
    axes[1].set_xlim(left=-3e-4)
    return figure
