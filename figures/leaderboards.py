"""The leaderboard: final reward by arm, fraction of the loss recovered, and which pairs of arms differ."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.kinds import BEYOND, draw_ends, name_level
from figures.series import read_labels
from figures.style import COLORS, MUTED, new_figure
from simlab.core.results import Results
from simlab.studies.loading import load_claims
from simlab.studies.remedy_ranking import MARGIN, Leaderboard, read_leaderboard

SHOWN = (-1, 1.5)
"""Limits of the axis of shares, which cuts an interval beyond them."""


def draw_recovery(results: Results, level: float) -> Figure:
    """Draw final rewards with their initial policies, fractions recovered, and differences of pairs."""
    board = read_leaderboard(results, load_claims()["V6"].trial(results.manifest["name"]))
    finals: Any = board.rewards
    order = finals.mean().sort_values(ascending=False).index.tolist()
    figure, (rewards, shares, pairs) = new_figure(0.24 * len(order) + 2.1, ncols=3, width_ratios=(1.2, 1, 1))
    labels = read_labels(results)
    names = [labels.get(arm, arm) for arm in order]
    for row, arm in enumerate(order):
        rewards.plot(finals[arm], [row] * len(finals), "o", color=COLORS[0], ms=3, alpha=0.6, mew=0)
        rewards.plot([finals[arm].mean()], [row], "|", color=COLORS[1], ms=10, mew=2)
    rewards.set(xlabel="held-out reward, both engines", title="Final reward")
    _draw_shares(shares, board, order, level)
    _draw_pairs(pairs, board, order)
    for axis in (rewards, shares, pairs):
        axis.set_ylim(len(order) - 0.5, -0.5)
        axis.set_yticks(range(len(order)), names if axis is rewards else [""] * len(order))
    pairs.set_xticks(range(len(order)), names, rotation=90, fontsize=6)
    return figure


def _draw_shares(axis: Any, board: Leaderboard, order: list[str], level: float) -> None:
    axis.axvline(0, color=MUTED, lw=0.8)
    axis.axvspan(-MARGIN, MARGIN, color=MUTED, alpha=0.15, lw=0)
    bar, tick = (
        {"color": COLORS[5], "lw": 3.5, "alpha": 0.5},
        {"color": COLORS[1], "marker": "|", "ms": 10, "mew": 2},
    )
    is_cut = False
    for row in board.recovered:
        ends = (row.ci_low, row.share, row.ci_high)
        is_cut |= draw_ends(axis, order.index(row.arm), ends, bar, tick, along="x", limits=SHOWN)
    level = max((row.level for row in board.recovered), default=level)  # that of the text about them
    words = f"fraction of the loss recovered\n(gray: margin)\nbars: {name_level(level)}"
    axis.set(xlabel=words + f"\n{BEYOND}" * is_cut, xlim=SHOWN)
    axis.set_title("Fraction recovered")


def _draw_pairs(axis: Any, board: Leaderboard, order: list[str]) -> None:
    matrix = np.full((len(order), len(order)), np.nan)
    for row in board.pairs.to_dict("records"):
        one, other = order.index(row["arm"]), order.index(row["other"])
        matrix[one, other], matrix[other, one] = row["difference"], -row["difference"]
        if row["significant"]:
            axis.plot([one, other], [other, one], "k.", ms=3)
    reach = np.nanmax(np.abs(matrix)) if len(order) > 1 else 1.0
    axis.imshow(matrix, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
    axis.grid(visible=False)
    axis.set(xlabel="red: row is better; dot:\ndiffers from 0 (Holm, 5%)", title="Reward, row minus column")
