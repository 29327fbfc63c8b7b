"""Spread of the probability ratio against mantissa bits, with first-order theory."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, COLUMN, DASHES, MARKERS, MUTED, new_figure
from simlab.core.results import Results

CURVES = {
    ("logits-probs", "toward_zero"): "both, toward zero",
    ("logits-probs", "nearest_even"): "logits and probabilities",
    ("logits", "nearest_even"): "logits only",
    ("probs", "nearest_even"): "probabilities only",
}
NUDGES = {"fp16": (5, 2), "e4m3fn": (-14, 6), "e3m4": (6, -2), "bf16": (6, 4)}
BITS = {"bf16": 7, "fp16": 10, "e4m3fn": 3, "e3m4": 4}


def draw(results: Results) -> Figure:
    """Draw measured spreads as points with intervals, theory as lines, named formats as stars."""
    spread: Any = results.table("spread")
    figure, axes = new_figure(COLUMN, 3.3)
    for i, ((placement, rounding), label) in enumerate(CURVES.items()):
        part = spread[(spread["placement"] == placement) & (spread["rounding"] == rounding)]
        part = part.sort_values("mantissa_bits")
        bits = part["mantissa_bits"].to_numpy()
        axes.plot(bits, part["theory"], color=COLORS[i], linestyle=DASHES[i], linewidth=1)
        low, high = part["std_low"].clip(lower=1e-9), part["std_high"]
        axes.vlines(bits, low, high, color=COLORS[i], linewidth=2, alpha=0.5)
        axes.plot(bits, part["std"], MARKERS[i], color=COLORS[i], markersize=3.5, label=label)
    _formats(axes, results.table("sweep"))
    axes.set_yscale("log", base=2)
    axes.set(xlabel="mantissa bits m", ylabel="std of p(float32) / p(format)", xlim=(0.5, 15.5))
    axes.set_xticks(np.arange(1, 16, 2))
    axes.plot(
        [], [], "*", color="black", markerfacecolor="white", markersize=8, label="formats, short exponents"
    )
    axes.plot([], [], "-", color=MUTED, linewidth=1, label="theory, slope $2^{-m}$")
    axes.legend(title="rounded", loc="lower left", title_fontsize=7)
    return figure


def _formats(axes, sweep: Any) -> None:
    """Named formats have a shortest exponent too: they leave the line where probabilities underflow."""
    chosen = sweep[
        (sweep["placement"] == "logits-probs")
        & (sweep["rounding"] == "nearest_even")
        & (sweep["temperature"] == 1.0)
        & (sweep["vocabulary"] == 2048)
    ].set_index("format")["std"]
    for name in BITS:
        axes.plot(
            BITS[name], chosen[name], "*", color="black", markersize=8, markerfacecolor="white", zorder=5
        )
        axes.annotate(
            name,
            (BITS[name], chosen[name]),
            NUDGES[name],
            textcoords="offset points",
            fontsize=7,
            zorder=6,
        )
