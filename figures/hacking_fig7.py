"""Mismatch by probability of the token, without correction (hacking Fig. 7)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.arms import SMOOTH, Panel, draw_panel, looks, tables
from figures.style import COLORS, DASHES, MARKERS, MUTED, PAGE, new_figure
from simlab.core.results import Results

ARM = "long: no correction"
BINS = {
    "below .01": (0.0, 0.01),
    ".01 to .1": (0.01, 0.1),
    ".5 to .9": (0.5, 0.9),
    "above .9": (0.9, 1.0),
}
MEAN = Panel("mean_rho", "mean $\\rho$ by $\\pi_{train}$")


def draw(results: Results) -> Figure:
    merged: Any = results.table("bins").merge(tables(results)[0][["run", "arm", "start"]], on="run")
    mine = merged[(merged["arm"] == ARM) & (merged["tokens"] > 0)]
    figure, axes = new_figure(PAGE, 2.6, ncols=2)
    _spread(axes[0], mine)
    _drift(axes[1], mine)
    for axis in axes:
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize=6.5)
    return figure


def _spread(axis: Any, bins: Any) -> None:
    """RMS log rho of each bin, in the first and the last quarter."""
    squares, last = bins.assign(square=bins["rms_log_rho"] ** 2), bins["step"].max()
    parts = {"first": squares["step"] <= last / 4, "last": squares["step"] >= 0.75 * last}
    for look, (label, part) in enumerate(parts.items()):
        by_start = np.sqrt(_pooled(squares[part], "square", ["high", "start"]))
        spread = by_start.groupby("high").agg(["mean", "sem"]).fillna(0)
        style = {"color": COLORS[look], "ls": DASHES[look], "marker": MARKERS[look], "capsize": 2}
        axis.errorbar(
            np.arange(len(spread)), spread["mean"], spread["sem"], label=f"{label} quarter", **style
        )
        axis.set_xticks(np.arange(len(spread)), [f"{high:g}" for high in spread.index])
    axis.set(xlabel="upper end of the bin of $\\pi_{train}$", ylabel="RMS log $\\rho$", ylim=(0, None))


def _drift(axis: Any, bins: Any) -> None:
    found = {}
    for label, (low, high) in BINS.items():
        rows = bins[(bins["low"] >= low - 1e-6) & (bins["high"] <= high + 1e-6)]
        if len(rows):
            curve = _pooled(rows, "mean_rho", ["step", "start"]).unstack("start")
            found[label] = curve.rolling(SMOOTH, min_periods=1, center=True).mean()
    draw_panel(axis, found, MEAN, looks(list(BINS)))
    axis.axhline(1, color=MUTED, lw=0.8)


def _pooled(rows: Any, column: str, by: list[str]) -> Any:
    """Mean of a column, each token counted once."""
    weighed = rows.assign(total=rows[column] * rows["tokens"]).groupby(by)[["total", "tokens"]].sum()
    return weighed["total"] / weighed["tokens"]
