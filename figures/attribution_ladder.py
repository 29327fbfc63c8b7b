"""Shares of the engine's sites in its mismatch, and the mismatch as site after site is exchanged."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, DASHES, MARKERS, MUTED, PAGE, new_figure
from simlab.core.results import Results


def draw(results: Results) -> Figure:
    shares: Any = results.table("shares")
    rungs: Any = results.table("rungs")
    policies = list(dict.fromkeys(shares["policy"]))
    # The ladder that has most rungs has all of them, in their order.
    groups = max((list(mine["group"]) for _, mine in shares.groupby("policy")), key=len)
    figure, (left, right) = new_figure(PAGE, 2.7, ncols=2)
    for look, policy in enumerate(policies):
        mine = shares[shares["policy"] == policy]
        place = np.array([groups.index(group) for group in mine["group"]]) + 0.22 * (look - 1)
        reach = np.abs(mine[["low", "high"]].to_numpy().T - mine["share"].to_numpy())
        style = {"color": COLORS[look], "marker": MARKERS[look]}
        left.errorbar(place, mine["share"], yerr=reach, ls="none", capsize=2, label=policy, **style)
        left.plot(place, mine["alone"], ls="none", mfc="none", **style)
        climb = rungs[rungs["policy"] == policy]
        known = [0, *(1 + groups.index(group) for group in climb["group"][1:])]
        right.plot(known, climb["rms_log_rho"], ls=DASHES[look], label=policy, **style)
    left.axhline(0, color=MUTED, lw=0.8)
    left.set_xticks(range(len(groups)), groups, rotation=30, ha="right")
    left.set(ylabel="share of squared log $\\rho$", title="exact shares (hollow: alone)")
    left.legend(fontsize=6)
    right.set_xticks(
        range(len(groups) + 1), ["none", *(f"+ {group}" for group in groups)], rotation=30, ha="right"
    )
    right.set(ylabel="mismatch: RMS log $\\rho$", title="one after the other")
    return figure
