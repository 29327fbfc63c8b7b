"""Reward of every remedy at one dose less that without one, ranked, and the mismatch it leaves."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from figures.arms import against, by_start, draw_against
from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

NONE = ("long: no correction", "long, MoE: no correction")
"""What a dense model's arms, or those of experts, are compared with."""


def draw(results: Results) -> Figure:
    reward, mismatch = by_start(results, "reward"), by_start(results, "rms_log_rho")
    order = reward.groupby("arm").mean().sort_values(ascending=False).index.tolist()
    none = next(arm for arm in NONE if arm in order)
    figure, axes = new_figure(PAGE, 0.21 * len(order) + 1, ncols=2, sharey=True)
    draw_against(axes[0], reward, against(none, order), "reward, last quarter, less that without")
    _left(axes[1], mismatch, order, none)
    return figure


def _left(axis: Any, mismatch: Any, order: Sequence[str], none: str) -> None:
    """The mismatch at the end of each arm, a line where nothing is done about it."""
    for row, arm in enumerate(order):
        axis.plot(mismatch[arm], [-row] * len(mismatch[arm]), "o", color=COLORS[0], ms=3, alpha=0.5, mew=0)
        axis.plot([mismatch[arm].mean()], [-row], "|", color=COLORS[1], ms=9, mew=2)
    axis.axvline(mismatch[none].mean(), color=MUTED, lw=0.8)
    axis.set(xlabel="mismatch, last quarter: RMS log $\\rho$", xscale="symlog")
    axis.set_xscale("symlog", linthresh=1e-3)
    axis.set_xlim(-3e-4, 1.5 * mismatch.max())
