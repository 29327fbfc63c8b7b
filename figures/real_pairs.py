"""Measured mismatch of real engines by probability of the token, on a lab-trained MoE and on SmolLM2."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import COLORS, DASHES, MARKERS, MUTED, PAGE, new_figure
from simlab.core.results import Results

LEAST_TOKENS = 20
SMALLEST = 1e-8  # where exact agreement is drawn


def draw(results: Results) -> Figure:
    """One panel per model: RMS log rho by bin of pi_train, one line per pair; own prefill dashed in gray."""
    bins: Any = results.table("bins")
    models = list(bins.model.unique())
    figure, axes = new_figure(PAGE, 2.9, ncols=len(models), sharey=True, squeeze=False)
    samplers = list(bins.sampler.unique())
    for axis, model in zip(axes[0], models, strict=True):
        rows = bins[(bins.model == model) & (bins.tokens >= LEAST_TOKENS)]
        for (sampler, scorer), line in rows.groupby(["sampler", "scorer"], sort=False):
            _line(axis, line, samplers.index(sampler), sampler, scorer)
        axis.set(yscale="log", xlabel="pi_train of the token", title=model)
        axis.set_xticks(range(len(bins.low.unique())))
        axis.set_xticklabels([f"{low:g}-" for low in sorted(bins.low.unique())])
    axes[0][0].set_ylabel("RMS log rho, nats")
    axes[0][-1].legend(loc="lower left", fontsize=6)
    return figure


def _line(axis: Axes, line: Any, number: int, sampler: str, scorer: str) -> None:
    places = np.searchsorted(np.asarray([0.0, 0.001, 0.01, 0.1, 0.5, 0.9]), line.low.to_numpy())
    values = np.maximum(line.rms_log_rho.to_numpy(), SMALLEST)
    if sampler == scorer:
        axis.plot(
            places,
            values,
            color=MUTED,
            linestyle=":",
            marker=MARKERS[number],
            label=f"{sampler}, own prefill",
        )
        return
    dash = DASHES[0] if scorer.endswith("32") else DASHES[1]
    axis.plot(
        places,
        values,
        color=COLORS[number],
        linestyle=dash,
        marker=MARKERS[number],
        label=f"{sampler} / {scorer}",
    )
