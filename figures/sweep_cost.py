"""How the time of a sweep grows with runs, width, response length and steps."""

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, MUTED, PAGE, new_figure, plain_log
from simlab.core.results import Results

LABELS = {
    "runs": "runs, in slices of one width",
    "width": "runs side by side",
    "length": "response length",
    "steps": "steps",
}


def draw(results: Results) -> Figure:
    """A panel per axis, with the fitted exponent."""
    cost, fits = results.table("cost"), results.table("fits").set_index("axis")
    figure, panels = new_figure(PAGE, 2.0, ncols=len(LABELS))
    for panel, (axis, label) in zip(panels, LABELS.items(), strict=True):
        rows = cost.loc[cost["axis"] == axis]
        x = np.asarray(rows["value"], float)
        panel.plot(x, rows["seconds"], "o", color=COLORS[0])
        exponent, factor = fits.loc[axis, "exponent"], fits.loc[axis, "factor"]
        panel.plot(x, factor * x**exponent, color=MUTED, lw=0.8)
        panel.set(xscale="log", yscale="log", xlabel=label, title=f"exponent {exponent:.2f}")
        panel.set_xticks(x, [f"{value:g}" for value in x])
        panel.minorticks_off()
        plain_log(panel.yaxis)
    panels[0].set_ylabel("seconds")
    return figure
