"""Mismatch under injected weights (hacking Fig. 5, 10, 12), clips (Fig. 4) and rare tokens (Fig. 7)."""

import numpy as np
from matplotlib.figure import Figure

from figures.arms import draw_arms, tables
from figures.style import COLORS, DASHES, MUTED, PAGE, new_figure, plain_log
from simlab.core.results import Results

DELTAS = ("GSPO", "GSPO, delta 0", "GSPO, delta 1.2", "GSPO, delta 2", "GSPO, delta 3", "GSPO, weight noise")
CLIPS = ("no correction", "clip 0.24", "clip 0.28", "GSPO")
BINS = ((0.0, 0.01, "below .01"), (0.01, 0.1, ".01 to .1"), (0.5, 0.9, ".5 to .9"), (0.9, 1.0, "above .9"))


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 2.5, ncols=3)
    draw_arms(axes[0], results, DELTAS, "rms_log_rho", labels=True)
    draw_arms(axes[1], results, CLIPS, "rms_log_rho", labels=True)
    for axis in axes[:2]:
        axis.set(ylabel="mismatch: RMS log $\\rho$", yscale="log")
        plain_log(axis.yaxis)
        axis.legend(fontsize=6)
    _rare(axes[2], results)
    return figure


def _rare(axis, results: Results) -> None:
    """Mean rho by probability, without correction, each token counted once."""
    runs, bins = tables(results)[0], results.table("bins")
    bins = bins[bins["run"].isin(runs["run"][runs["arm"] == "no correction"])]
    for look, (low, high, label) in enumerate(BINS):
        rows = bins[(bins["low"] >= low - 1e-6) & (bins["high"] <= high + 1e-6) & (bins["tokens"] > 0)]
        steps, where = np.unique(rows["step"], return_inverse=True)
        total = np.bincount(where, rows["mean_rho"] * rows["tokens"]) / np.bincount(where, rows["tokens"])
        axis.plot(steps, total, color=COLORS[look], ls=DASHES[look], label=label)
    axis.axhline(1, color=MUTED, lw=0.8)
    axis.set(xlabel="step", ylabel="mean $\\rho$ by $\\pi_{train}$")
    axis.legend(fontsize=6)
