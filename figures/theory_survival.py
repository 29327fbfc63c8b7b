"""Mean rho by probability of the token, sorted by either policy: noise, truncation, rounding to nearest."""

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

LEAST_MASS = 1e-3
PANELS = {
    "Noise: if pi_infer sorts": {"gaussian noise": "noise"},
    "Truncated: rare below 1": {"e4m3fn truncated": "E4M3", "bf16 truncated": "BF16"},
    "Nearest: rare stay at 1": {"e4m3fn": "E4M3", "bf16": "BF16"},
}
# Filled and solid: sorted by pi_train. Open and dashed: by pi_infer.
SORTED = {"train": {"linestyle": "-"}, "infer": {"linestyle": "--", "markerfacecolor": "white"}}
ENGINES = {
    "noise": {"color": COLORS[2], "marker": "^"},
    "E4M3": {"color": COLORS[1], "marker": "s"},
    "BF16": {"color": COLORS[0], "marker": "o"},
}


def draw(results: Results) -> Figure:
    """Three panels on one scale: the effect of noise, of truncation, and of rounding to nearest."""
    table = results.table("survival")
    table = table.loc[table.mass > LEAST_MASS]
    figure, axes = new_figure(PAGE, 2.7, ncols=3, sharey=True)
    for axis, (title, engines) in zip(axes, PANELS.items(), strict=True):
        for engine, label in engines.items():
            for by, style in SORTED.items():
                _curve(
                    axis,
                    table,
                    engine,
                    by,
                    **ENGINES[label],
                    **style,
                    markersize=3.5,
                    label=f"{label}, by pi_{by}",
                )
        axis.axhline(0, color="black", linewidth=0.7)
        axis.set(xscale="log", xlabel="probability of the token")
        axis.set_title(title)
    for by in SORTED:
        _curve(axes[0], table, "predicted", by, color=MUTED, linewidth=0.8)
    for axis in axes:
        axis.legend(loc="upper left" if axis is not axes[0] else "lower left", fontsize=6)
    axes[0].set(ylabel="mean of rho - 1, percent")
    return figure


def _curve(axis, table, engine: str, by: str, **style) -> None:
    line = table.loc[(table.engine == engine) & (table.by == by)]
    axis.plot(np.sqrt(line.low * line.high), 100 * (line.mean_rho - 1), **style)
