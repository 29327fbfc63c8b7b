"""Where the softmax rounds, and which placement gives the paper's table and its few levels."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

COLUMNS = {"mean": "mean", "std": "std", "max": "largest", "min": "smallest"}
HALF_DIGIT = 5e-5
FEW = 0.1
PAPER = COLORS[1]


def draw(results: Results) -> Figure:
    """Draw one panel per column of the table, one row per placement, the paper as a line."""
    fits: Any = results.table("fit")
    reading = fits["per_vector"].min()
    fits = fits[fits["per_vector"] == reading]
    order = list(fits[fits["column"] == "std"].sort_values("ours", ascending=False)["placement"])
    levels = _levels(results, reading)
    few = (levels["levels"] < FEW * levels["levels_float32"]).to_dict()
    styles = _styles(fits.groupby("placement")["inside"].all().to_dict(), few)
    figure, (*panels, last) = new_figure(PAGE, 2.9, ncols=len(COLUMNS) + 1, sharey=True)
    for axes, (column, title) in zip(panels, COLUMNS.items(), strict=True):
        rows = fits[fits["column"] == column].set_index("placement").loc[order]
        _column(axes, rows, styles)
        axes.set_title(title)
    for y, name in enumerate(order):
        last.plot(levels.loc[name, "levels"], y, "o", **styles[name])
    last.set(title="levels", xscale="log", xlim=(100, 2e5))
    last.set_xlabel("distinct values\n(paper: few)", color=PAPER)
    panels[0].set(xlim=(0.99965, 1.00015), xticks=[0.9997, 0.9999, 1.0001])
    panels[0].set_yticks(np.arange(len(order)), order)
    for label, name in zip(panels[0].get_yticklabels(), order, strict=True):
        label.set_color(styles[name]["color"])
        label.set_weight("bold" if styles[name]["markerfacecolor"] == COLORS[0] else "normal")
    figure.supxlabel(
        "p(float32) / p(BF16) of sampled tokens, by what is rounded. Bars: 95% prediction interval for the "
        "average of five seeds.\nBlue: all four columns agree with the paper. Filled: the levels do as well.",
        fontsize=7,
        color=MUTED,
    )
    return figure


def _levels(results: Results, reading: int) -> Any:
    ratios: Any = results.table("ratios")
    chosen = ratios[(ratios["per_vector"] == reading) & (ratios["format"] == "bf16")]
    return chosen.groupby("placement")[["levels", "levels_float32"]].mean()


def _styles(agrees: dict[str, bool], few: dict[str, bool]) -> dict[str, dict[str, str]]:
    return {
        name: {
            "color": COLORS[0] if agrees[name] else MUTED,
            "markerfacecolor": COLORS[0] if agrees[name] and few[name] else "white",
        }
        for name in agrees
    }


def _column(axes, rows: Any, styles: dict[str, dict[str, str]]) -> None:
    paper = rows["paper"].iloc[0]
    axes.axvspan(paper - HALF_DIGIT, paper + HALF_DIGIT, color=PAPER, alpha=0.5, linewidth=0)
    axes.axvline(paper, color=PAPER, linewidth=0.8)
    for y, (name, row) in enumerate(rows.iterrows()):
        color = styles[name]["color"]
        axes.plot([row["low"], row["high"]], [y, y], color=color, linewidth=2.2, solid_capstyle="butt")
        axes.plot(row["ours"], y, "o", **styles[name])
    axes.set_xlabel(f"paper:\n{paper:.4f}", color=PAPER)
    axes.locator_params(axis="x", nbins=3)
    axes.ticklabel_format(axis="x", useOffset=False)
