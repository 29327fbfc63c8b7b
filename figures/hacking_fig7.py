"""Mismatch by probability of the token, without correction (hacking Fig. 7)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.arms import tables
from figures.style import COLORS, DASHES, MARKERS, MUTED, PAGE, new_figure
from simlab.core.results import Results

ARM = "no correction"
BINS = ((0.0, 0.01, "below .01"), (0.01, 0.1, ".01 to .1"), (0.5, 0.9, ".5 to .9"), (0.9, 1.0, "above .9"))


def draw(results: Results) -> Figure:
    runs, bins = tables(results)[0], results.table("bins")
    mine: Any = bins[bins["run"].isin(runs["run"][runs["arm"] == ARM]) & (bins["tokens"] > 0)]
    figure, axes = new_figure(PAGE, 2.4, ncols=2)
    _spread(axes[0], mine)
    _drift(axes[1], mine)
    return figure


def _spread(axis: Any, bins: Any) -> None:
    """RMS log rho of each bin, in the first and the last quarter."""
    squares, last = bins.assign(square=bins["rms_log_rho"] ** 2), bins["step"].max()
    parts = {"first": squares["step"] <= last / 4, "last": squares["step"] >= 0.75 * last}
    for look, (label, part) in enumerate(parts.items()):
        spread = np.sqrt(_pooled(squares[part], "square", "high"))
        style = {"color": COLORS[look], "ls": DASHES[look], "marker": MARKERS[look]}
        axis.plot(np.arange(len(spread)), spread, label=f"{label} quarter", **style)
        axis.set_xticks(np.arange(len(spread)), [f"{high:g}" for high in spread.index])
    axis.set(xlabel="upper end of the bin of $\\pi_{train}$", ylabel="RMS log $\\rho$")
    axis.legend()


def _drift(axis: Any, bins: Any) -> None:
    for look, (low, high, label) in enumerate(BINS):
        rows = bins[(bins["low"] >= low - 1e-6) & (bins["high"] <= high + 1e-6)]
        means = _pooled(rows, "mean_rho", "step")
        axis.plot(means.index, means, color=COLORS[look], ls=DASHES[look], label=label)
    axis.axhline(1, color=MUTED, lw=0.8)
    axis.set(xlabel="step", ylabel="mean $\\rho$ by $\\pi_{train}$")
    axis.legend(fontsize=6)


def _pooled(rows: Any, column: str, by: str) -> Any:
    """Mean of a column, each token counted once."""
    weighed = rows.assign(total=rows[column] * rows["tokens"]).groupby(by)[["total", "tokens"]].sum()
    return weighed["total"] / weighed["tokens"]
