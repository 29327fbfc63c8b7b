"""Reward of every remedy at one dose less that without one, ranked, and the mismatch it leaves."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.arms import against, by_start, draw_against
from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

BASELINES = {"dense": "long: no correction", "experts": "long, MoE: no correction"}


def draw(results: Results) -> Figure:
    reward, mismatch = by_start(results, "reward"), by_start(results, "rms_log_rho")
    ranked = reward.groupby("arm").mean().sort_values(ascending=False).index.tolist()
    of_experts = [arm for arm in ranked if arm.startswith("long, MoE")]
    groups = {"dense": [arm for arm in ranked if arm not in of_experts], "experts": of_experts}
    groups = {model: order for model, order in groups.items() if order}
    sizes = [len(order) + 1 for order in groups.values()]
    figure, axes = new_figure(
        PAGE, 0.21 * sum(sizes) + 0.8 * len(sizes), nrows=len(groups), ncols=2, sharey="row", sharex="col",
        squeeze=False, height_ratios=sizes,
    )  # fmt: skip
    for row, (model, order) in enumerate(groups.items()):
        base = BASELINES[model]
        draw_against(axes[row][0], reward, against(base, order), "reward, last quarter, less that without")
        _left(axes[row][1], mismatch, order, base)
    return figure


def _left(axis: Any, mismatch: Any, order: Sequence[str], base: str) -> None:
    """The mismatch at the end of each arm, a line where nothing is done about it."""
    for row, arm in enumerate(order):
        axis.plot(mismatch[arm], [-row] * len(mismatch[arm]), "o", color=COLORS[0], ms=3, alpha=0.5, mew=0)
        axis.plot([mismatch[arm].mean()], [-row], "|", color=COLORS[1], ms=9, mew=2)
    axis.axvline(mismatch[base].mean() if base in order else np.nan, color=MUTED, lw=0.8)
    axis.set(xlabel="mismatch, last quarter: RMS log $\\rho$", xscale="symlog")
    axis.set_xscale("symlog", linthresh=1e-3)
    axis.set_xlim(left=-3e-4)
