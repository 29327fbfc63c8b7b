"""Emulated against measured: quantiles of log rho, for the nearest emulation and the catalog's own."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, MARKERS, MUTED, PAGE, new_figure
from simlab.core.results import Results


def draw(results: Results) -> Figure:
    """One panel per model and sampler; a perfect emulation lies on the diagonal."""
    quantiles, fits = results.table("quantiles"), results.table("fits")
    panels: Any = list(quantiles.groupby(["model", "sampler"], sort=False))
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(PAGE, 2.2 * rows, ncols=columns, nrows=rows, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, ((model, sampler), found) in zip(axes.flat, panels, strict=False):
        own: Any = fits[(fits.model == model) & (fits.sampler == sampler)].set_index("emulation")
        for number, (label, line) in enumerate(found.groupby("emulation", sort=False)):
            distance = own.distance[label]
            axis.plot(
                line.measured,
                line.predicted,
                MARKERS[number],
                color=COLORS[number],
                markersize=2.5,
                label=f"{label}: {distance:.2f}",
            )
        size = float(np.abs(found.measured).max()) or 1.0
        axis.plot([-size, size], [-size, size], color=MUTED, linewidth=0.7)
        axis.set(xlabel="measured log rho", title=f"{sampler}\n{model}", ylim=(-1.5 * size, 1.5 * size))
        axis.title.set_fontsize(7)
        axis.legend(loc="upper left", fontsize=6, title="distance", title_fontsize=6)
    for row in axes:
        row[0].set_ylabel("predicted log rho")
    return figure
