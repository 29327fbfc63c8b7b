"""What the sums of tensor cores cost, in float32 products of the same shape."""

from matplotlib.figure import Figure

from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

VARIANTS = {"static": COLORS[0], "traced": COLORS[4]}


def draw(results: Results) -> Figure:
    """Bars of the ratio to a float32 product, one panel per shape of the run."""
    table = results.table("throughput")
    shapes = results.manifest["config"]["shapes"]
    names = list(dict.fromkeys(table["name"]))[::-1]
    figure, panels = new_figure(PAGE, 0.22 * len(names) + 0.9, ncols=len(shapes), sharey=True, squeeze=False)
    for axes, (shape, sizes) in zip(panels[0], shapes.items(), strict=True):
        part = table.loc[table["shape"] == shape]
        for row in part.to_dict("records"):
            place = names.index(row["name"]) + 0.2 - 0.4 * (row["variant"] == "traced")
            axes.barh(place, row["ratio"], height=0.38, color=VARIANTS[row["variant"]])
            axes.text(row["ratio"], place, f" {row['ratio']:.2g}", va="center", fontsize=5, color=MUTED)
        axes.axvline(results.manifest["config"]["limit"], color=COLORS[6], linewidth=0.8, linestyle="--")
        axes.set_xscale("log")
        axes.set_xlim(0.7, max(part["ratio"].max(), results.manifest["config"]["limit"]) * 1.6)
        axes.set_title(" x ".join(str(n) for n in sizes))
        axes.set_xlabel("time, in float32 products")
        axes.grid(visible=False, axis="y")
    panels[0][0].set_yticks(range(len(names)), names)
    handles = [panels[0][0].barh(0, 0, color=color, label=label) for label, color in VARIANTS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure
