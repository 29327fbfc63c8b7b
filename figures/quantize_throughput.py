"""How fast rounding to a number format is, against the memory limit and other libraries."""

from typing import Any

from matplotlib.figure import Figure

from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

# Behind the numbers, so that the line of the limit does not cross them.
PATCH = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
GROUPS = {"limit": COLORS[6], "simlab": COLORS[0], "others": COLORS[1]}


def draw(results: Results) -> Figure:
    """Bars of throughput on a log axis, fastest on top; the line is the in-place x + 1."""
    table = results.table("throughput")
    measured = table.loc[table.status == "measured"].sort_values(by="gel_per_s")
    absent = table[table.status != "measured"]
    figure, axes = new_figure(PAGE, 0.17 * (len(measured) + len(absent)) + 0.9)
    limit = measured[(measured.method == "add_one") & (measured.variant == "donated")].gel_per_s.iloc[0]
    labels = [f"{name} (not installed)" for name in absent.method]
    for height, row in enumerate(measured.to_dict("records"), start=len(labels)):
        axes.barh(height, row["gel_per_s"], color=GROUPS[_group(row["method"])], height=0.7)
        text = f" {row['gel_per_s']:.3g}  ({row['ratio_to_limit']:.2g} of the limit)"
        axes.text(row["gel_per_s"], height, text, va="center", fontsize=6, color=MUTED, bbox=PATCH)
        labels.append(_label(row))
    axes.axvline(limit, color=COLORS[6], linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_xlim(measured.gel_per_s.min() / 2, measured.gel_per_s.max() * 8)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.set_xlabel("billion float32 numbers per second")
    axes.set_title("Quantize and dequantize at the speed of memory")
    axes.grid(visible=False, axis="y")
    return figure


def _group(method: str) -> str:
    if method in ("add_one", "np.copyto"):
        return "limit"
    return "simlab" if method.startswith("simlab") else "others"


def _label(row: dict[Any, Any]) -> str:
    name = "x + 1" if row["method"] == "add_one" else row["method"]
    return f"{name}, {row['format']}, {row['variant']}"
