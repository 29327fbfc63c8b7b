"""Mean rho by probability of the token under FP8 rollouts (acrl Fig. 6)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.arms import legend_above, tables
from figures.style import COLORS, MARKERS, MUTED, new_figure
from simlab.core.results import Results

ARMS = {"long: FP8": "nearest FP8", "long: no correction": "the truncated dose"}


def draw(results: Results) -> Figure:
    merged: Any = results.table("bins").merge(tables(results)[0][["run", "arm", "start", "steps"]], on="run")
    late = merged[(merged["step"] >= 0.75 * merged["steps"]) & (merged["tokens"] > 0)]
    figure, axis = new_figure()
    for look, (arm, label) in enumerate(ARMS.items()):
        mine = late[late["arm"] == arm]
        weighed = mine.assign(total=mine["mean_rho"] * mine["tokens"])
        sums = weighed.groupby(["high", "start"])[["total", "tokens"]].sum()
        means = (sums["total"] / sums["tokens"]).groupby("high").agg(["mean", "sem"]).fillna(0)
        place = np.arange(len(means)) + 0.1 * look
        style = {"color": COLORS[look], "label": label, "capsize": 2}
        axis.errorbar(place, means["mean"], yerr=means["sem"], fmt=MARKERS[look], **style)
        axis.set_xticks(np.arange(len(means)), [f"{high:g}" for high in means.index])
    axis.axhline(1, color=MUTED, lw=0.8)
    axis.set(xlabel="upper end of the bin of $\\pi_{train}$", ylabel="mean $\\rho$, last quarter")
    legend_above(figure, [axis])
    return figure
