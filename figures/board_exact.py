"""The exact claims: residuals of identities, and how much of their bounds is used."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

SMALLEST = 1e-17
WORDS = {"holds": ("o", COLORS[0]), "false as printed": ("X", COLORS[1])}


def draw(results: Results) -> Figure:
    """One line per row of the theory board: residuals on the left, measured over bound on the right."""
    table: Any = results.table("rows")
    bounded = table["tightness"].notna()
    figure, (left, right) = new_figure(PAGE, 5.4, ncols=2, width_ratios=(1.5, 1))
    _lines(left, table[~bounded].to_dict("records"), "residual", SMALLEST)
    left.set_xlabel("residual, relative or against its rule (leftmost: zero)")
    left.set_title("Identities, signs and orders")
    _lines(right, table[bounded].to_dict("records"), "tightness", 1e-2)
    right.axvline(1, color=MUTED, linewidth=0.8)
    right.set_xlabel("measured over bound")
    right.set_title("Bounds")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=2)
    return figure


def _lines(axes: Axes, rows: list[dict], column: str, least: float) -> None:
    for word, (marker, color) in WORDS.items():
        chosen = [(place, row[column]) for place, row in enumerate(rows) if row["verdict"] == word]
        places, values = np.array(chosen, float).reshape(-1, 2).T
        axes.plot(np.maximum(values, least), places, marker, color=color, linestyle="none", label=word)
    labels = [f"{row['claim']}  {row['equation'].split(' ', 1)[1]}" for row in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=6)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("log")
