"""A real model's logits beside Gaussian ones: spread of the ratio, and number of levels."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, MARKERS, MUTED, PAGE, new_figure
from simlab.core.results import Results

SOURCES = {"smollm2": "SmolLM2-135M", "gaussian": "Gaussian"}
FORMATS = ("tf32", "fp16", "bf16", "e4m3fn", "e5m2")
LEAST_MASS = 0.005


def draw(results: Results) -> Figure:
    """Draw std of the ratio by probability and by format, and levels per distribution."""
    figure, (octaves, spread, levels) = new_figure(PAGE, 2.7, ncols=3, width_ratios=(5, 4, 4))
    _octaves(octaves, results.table("real_octaves"))
    real: Any = results.table("real")
    sweep: Any = results.table("sweep")
    sweep = sweep[(sweep["vocabulary"] == 2048) & (sweep["temperature"] == 1.0)]
    points = [
        ("Gaussian", sweep, "logits-probs", COLORS[1], MARKERS[1], "white"),
        ("SmolLM2", real, "logits-probs", COLORS[0], MARKERS[0], COLORS[0]),
        (
            "SmolLM2, largest logit\nsubtracted before rounding",
            real,
            "centered-logits",
            COLORS[2],
            "D",
            "white",
        ),
    ]
    for label, frame, placement, color, marker, face in points:
        chosen = frame[(frame["placement"] == placement) & (frame["rounding"] == "nearest_even")]
        chosen = chosen.set_index("format").loc[list(FORMATS)]
        style = {"color": color, "markerfacecolor": face, "markersize": 5, "label": label}
        for axes, column in ((spread, "std"), (levels, "levels")):
            axes.plot(chosen[column], np.arange(len(FORMATS)), marker, **style)
    for axes in (spread, levels):
        axes.set_xscale("log")
        axes.set_yticks(np.arange(len(FORMATS)), FORMATS)
        axes.set_ylim(len(FORMATS) - 0.5, -0.5)
    spread.set(title="By format", xlabel="std of p(float32) / p(format)")
    levels.set(title="Levels", xlabel="distinct values per distribution")
    handles, labels = spread.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=3)
    return figure


def _octaves(axes, octaves: Any) -> None:
    for (source, label), color, marker in zip(SOURCES.items(), COLORS, MARKERS, strict=False):
        part = octaves[(octaves["source"] == source) & (octaves["mass"] > LEAST_MASS)]
        x = part["octave"] + 0.5
        axes.plot(x, part["theory"], color=color, linewidth=1)
        face = color if source == "smollm2" else "white"
        axes.plot(x, part["std"], marker, color=color, markerfacecolor=face)
        height = 1.25 * part["std"].max()
        axes.text(x.mean(), height, label, color=color, ha="center", weight="bold")
    axes.plot([], [], "-", color=MUTED, linewidth=1, label="first-order theory")
    axes.set_yscale("log")
    axes.set(title="BF16, by probability", xlabel="token probability p(float32)", ylim=(1e-3, 0.1))
    axes.set_ylabel("std of p(float32) / p(BF16)")
    ticks = np.arange(-18, 1, 6)
    axes.set_xticks(ticks, [f"$2^{{{tick}}}$" if tick else "1" for tick in ticks])
    axes.legend(loc="lower right")
