"""Reward of every remedy at one dose less that without one, ranked, and the mismatch it leaves."""

import numpy as np
from matplotlib.figure import Figure

from figures.arms import against, by_start, draw_against
from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

BASELINE = "no correction"


def draw(results: Results) -> Figure:
    reward, mismatch = by_start(results, "reward"), by_start(results, "rms_log_rho")
    order = reward.groupby("arm").mean().sort_values(ascending=False).index.tolist()
    figure, axes = new_figure(PAGE, 0.21 * len(order) + 1.0, ncols=2, sharey=True)
    draw_against(axes[0], reward, against(BASELINE, order), f"reward, last quarter, less that of {BASELINE}")
    for row, arm in enumerate(order):
        axes[1].plot(mismatch[arm], [-row] * len(mismatch[arm]), "o", color=COLORS[0], ms=3, alpha=0.5, mew=0)
        axes[1].plot([mismatch[arm].mean()], [-row], "|", color=COLORS[1], ms=9, mew=2)
    axes[1].axvline(mismatch[BASELINE].mean() if BASELINE in order else np.nan, color=MUTED, lw=0.8)
    axes[1].set(xlabel="mismatch, last quarter: RMS log $\\rho$", xscale="symlog")
    axes[1].set_xscale("symlog", linthresh=1e-3)
    axes[1].set_xlim(left=-3e-4)
    return figure
