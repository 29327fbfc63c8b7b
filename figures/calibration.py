"""Emulated against measured: quantiles of log rho, for the catalog's own emulation and the nearest."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

COLUMNS = 4
EXACT = 1e-4  # a pair that is nearer than that has nothing to predict
LOOKS = {True: (COLORS[0], "o"), False: (COLORS[1], "s")}
MODELS = {"tiny-moe": "lab MoE", "smollm2": "SmolLM2"}


def draw(results: Results) -> Figure:
    """One panel per model and sampler, scored in float32; a perfect emulation lies on the diagonal."""
    quantiles, fits = results.table("quantiles"), results.table("fits")
    fits = fits[(fits.scorer == fits.scorer.iloc[0]) & (fits.rms_measured > EXACT)]
    panels: Any = list(fits.groupby(["model", "sampler"], sort=False))
    rows = -(-len(panels) // COLUMNS)
    columns = min(COLUMNS, len(panels))
    figure, axes = new_figure(PAGE, 0.4 + 1.9 * rows, ncols=columns, nrows=rows, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, ((model, sampler), own) in zip(axes.flat, panels, strict=False):
        shown = quantiles[
            (quantiles.model == model)
            & (quantiles.sampler == sampler)
            & (quantiles.scorer == own.scorer.iloc[0])
        ]
        _panel(axis, shown, own.set_index("emulation"))
        axis.set_title(f"{sampler}\n{MODELS.get(model, model)}", fontsize=7)
    figure.supxlabel("measured log $\\rho$, quantiles from 1% to 99%", fontsize=8)
    figure.supylabel("predicted log $\\rho$", fontsize=8)
    for counterpart, label in ((True, "the catalog's emulation"), (False, "the nearest, if another")):
        color, marker = LOOKS[counterpart]
        axes[0][0].plot([], [], marker, color=color, label=label)
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*(found[-2:] for found in handles), loc="outside upper center", ncols=2)
    return figure


def _panel(axis: Axes, quantiles: Any, fits: Any) -> None:
    for label, line in quantiles.groupby("emulation", sort=False):
        color, marker = LOOKS[bool(fits.counterpart[label])]
        text = f"{label}: {fits.distance[label]:.2f}"
        axis.plot(line.measured, line.predicted, marker, color=color, markersize=2.2, label=text)
    size = 1.1 * float(np.abs(quantiles.measured).max()) or 1.0
    axis.plot([-size, size], [-size, size], color=MUTED, linewidth=0.7)
    axis.locator_params(nbins=3)
    axis.tick_params(labelsize=6)
    axis.set(xlim=(-size, size), ylim=(-1.5 * size, 1.5 * size))
    axis.legend(loc="upper left", fontsize=5.5, handletextpad=0.0, borderpad=0.0, borderaxespad=0.1)
