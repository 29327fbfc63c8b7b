"""The leaderboard: final reward by arm, fraction of the loss recovered, and which pairs of arms differ."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.kinds import name_level
from figures.series import read_labels
from figures.style import COLORS, MUTED, new_figure
from simlab.core.results import Results
from simlab.studies.loading import load_claims
from simlab.studies.remedy_ranking import MARGIN, Leaderboard, read_leaderboard

PLAIN_LEVEL = 0.95
"""Level of an interval that no interim analysis and no family has widened."""
SHOWN, BEYOND = (-1, 1.5), (-2, 2.5)
"""Limits of the axis of shares; an interval without an end runs out of the picture."""
VERDICTS = {"supported": COLORS[2], "inconclusive": COLORS[5], "negligible": MUTED, "contradicted": COLORS[1]}


def draw_recovery(results: Results) -> Figure:
    """Draw final rewards with their initial policies, fractions recovered, and significant pairs."""
    board = read_leaderboard(results, load_claims()["V6"].trial(results.manifest["name"]))
    finals: Any = board.rewards
    order = finals.mean().sort_values(ascending=False).index.tolist()
    figure, (rewards, shares, pairs) = new_figure(0.24 * len(order) + 1.7, ncols=3, width_ratios=(1.2, 1, 1))
    labels = read_labels(results)
    names = [f"{labels.get(arm, arm)} ({finals[arm].count()})" for arm in order]
    for row, arm in enumerate(order):
        rewards.plot(finals[arm], [row] * len(finals), "o", color=COLORS[0], ms=3, alpha=0.6, mew=0)
        rewards.plot([finals[arm].mean()], [row], "|", color=COLORS[1], ms=10, mew=2)
    rewards.set(xlabel="held-out reward, both engines\n(in brackets: initial policies)", title="Final reward")
    _draw_shares(shares, board, order)
    _draw_pairs(pairs, board, order)
    for axis in (rewards, shares, pairs):
        axis.set_ylim(len(order) - 0.5, -0.5)
        axis.set_yticks(range(len(order)), names if axis is rewards else [""] * len(order))
    return figure


def _draw_shares(axis: Any, board: Leaderboard, order: list[str]) -> None:
    axis.axvline(0, color=MUTED, lw=0.8)
    axis.axvspan(-MARGIN, MARGIN, color=MUTED, alpha=0.15, lw=0)
    for row in board.recovered:
        style: Any = {"color": VERDICTS[row.verdict]}
        height = order.index(row.arm)
        width = 3.5 if row.level > PLAIN_LEVEL else 1
        ends = np.clip([row.ci_low, row.ci_high], *BEYOND)
        axis.plot(ends, [height] * 2, lw=width, alpha=0.6, **style)
        axis.plot([row.share], [height], "|", ms=10, mew=2, **style)
    has_thin = any(row.level <= PLAIN_LEVEL for row in board.recovered)
    bars = name_level(max((row.level for row in board.recovered), default=PLAIN_LEVEL))
    thin = "; thin: 95%" if has_thin else ""
    axis.set(xlabel=f"fraction of the loss recovered\n(gray: margin; bars:\n{bars}{thin})", xlim=SHOWN)
    axis.set_title("Fraction recovered")
    for verdict in dict.fromkeys(row.verdict for row in board.recovered):
        axis.plot([], [], lw=3.5, alpha=0.6, color=VERDICTS[verdict], label=verdict)
    if board.recovered:
        axis.legend(loc="lower left", fontsize=6)


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
    axis.set_xticks(range(len(order)), range(1, len(order) + 1))
    axis.set(xlabel="rank of the other arm\n(red: better; dot: significant)", title="Pairs that differ")
