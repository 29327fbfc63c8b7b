"""Mean rho by probability of the token under FP8 rollouts (acrl Fig. 6)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.arms import tables
from figures.style import COLORS, MARKERS, MUTED, new_figure
from simlab.core.results import Results

ARMS = ("FP8", "no correction")
NAMES = {"FP8": "nearest FP8", "no correction": "the truncated dose"}


def draw(results: Results) -> Figure:
    runs, bins = tables(results)[0], results.table("bins")
    figure, axis = new_figure()
    for look, arm in enumerate(ARMS):
        mine: Any = bins[bins["run"].isin(runs["run"][runs["arm"] == arm]) & (bins["tokens"] > 0)]
        late = mine[mine["step"] >= 0.75 * (mine["step"].max() + 10)]
        sums = (
            late.assign(total=late["mean_rho"] * late["tokens"])
            .groupby(["low", "high"])[["total", "tokens"]]
            .sum()
        )
        place = np.arange(len(sums)) + 0.1 * look
        axis.plot(place, sums["total"] / sums["tokens"], MARKERS[look], color=COLORS[look], label=NAMES[arm])
        axis.set_xticks(np.arange(len(sums)), [f"{high:g}" for _, high in sums.index], rotation=45)
    axis.axhline(1, color=MUTED, lw=0.8)
    axis.set(xlabel="upper end of the bin of $\\pi_{train}$", ylabel="mean $\\rho$, last quarter")
    axis.legend()
    return figure
