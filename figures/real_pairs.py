"""Measured mismatch of real engines on a lab-trained MoE and on SmolLM2: by pair, and by probability."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import COLORS, DASHES, MARKERS, MUTED, PAGE, new_figure
from simlab.core.results import Results

LEAST_TOKENS = 20
FLOOR = 1e-8  # exact agreement is drawn here
EXACT = 1e-4  # what is nearer than that gets no line of its own
TITLES = {"tiny-moe": "MoE trained in the lab", "smollm2": "SmolLM2-135M"}


def draw(results: Results) -> Figure:
    """Above, one row per sampler and one mark per scorer; below, a line per sampler against float32."""
    pairs, bins = results.table("pairs"), results.table("bins")
    models = list(pairs.model.unique())
    samplers = list(pairs.sampler.unique())
    scorers = [name for name in pairs.scorer.unique() if name not in samplers] or samplers
    figure, axes = new_figure(
        PAGE, 4.6, nrows=2, ncols=len(models), sharex="row", sharey="row", squeeze=False
    )
    for (above, below), model in zip(axes.T, models, strict=True):
        _marks(above, pairs[pairs.model == model], samplers, scorers)
        above.set_title(TITLES.get(model, model))
        _lines(below, bins[(bins.model == model) & (bins.scorer == scorers[0])], samplers)
    axes[0][0].set_yticks(range(len(samplers)), samplers)
    axes[0][0].invert_yaxis()
    axes[1][0].set_ylabel("RMS log $\\rho$, nats")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    axes[1][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=6)
    return figure


def _marks(axis: Axes, rows: Any, samplers: list[str], scorers: list[str]) -> None:
    looks = zip(scorers, COLORS, MARKERS, strict=False)
    for scorer, color, marker in looks:
        found = rows[(rows.scorer == scorer) & (rows.sampler != scorer)]
        _points(axis, found, samplers, f"scored by {scorer}", color=color, marker=marker)
    own = rows[rows.sampler == rows.scorer]
    _points(axis, own, samplers, "scored by its own prefill", color=MUTED, marker="D", markersize=3)
    axis.set(xscale="log", xlabel="RMS log $\\rho$ of the sampled tokens, nats")
    axis.set_xticks([FLOOR, 1e-6, 1e-4, 1e-2, 1], ["0", "$10^{-6}$", "$10^{-4}$", "0.01", "1"], minor=False)
    axis.minorticks_off()


def _points(axis: Axes, rows: Any, samplers: list[str], label: str, **look: Any) -> None:
    values = np.maximum(rows.rms_log_rho.to_numpy(), FLOOR)
    places = [samplers.index(name) for name in rows.sampler]
    # Hollow, so that marks in one place are all seen.
    axis.plot(values, places, linestyle="", markerfacecolor="none", label=label, **look)


def _lines(axis: Axes, rows: Any, samplers: list[str]) -> None:
    lows = sorted(rows.low.unique())
    shown = [
        name
        for name in samplers
        if rows[(rows.sampler == name) & (rows.tokens > 0)].rms_log_rho.max() > EXACT
    ]
    for name, color, dash, marker in zip(shown, COLORS, DASHES, MARKERS, strict=False):
        line = rows[(rows.sampler == name) & (rows.tokens >= LEAST_TOKENS)]
        places = np.searchsorted(lows, line.low.to_numpy())
        axis.plot(places, line.rms_log_rho, color=color, linestyle=dash, marker=marker, label=name)
        if len(line):
            axis.set_yscale("log")
    axis.set_xticks(range(len(lows)), [f"{low:g}" for low in lows])
    axis.set_xlabel("probability of the token, from")
