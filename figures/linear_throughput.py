"""What accumulators and engines cost, in float32 products of the same shape."""

from matplotlib.figure import Figure

from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

VARIANTS = {"static": COLORS[0], "traced": COLORS[4], "static, weights quantized": COLORS[2]}


def draw(results: Results) -> Figure:
    """Bars of the ratio to a float32 product, one panel per kind, for the first shape of the run."""
    table = results.table("linear")
    shape = table["shape"].iloc[0]
    table = table.loc[table["shape"] == shape]
    sizes = " x ".join(str(n) for n in results.manifest["config"]["shapes"][shape])
    kinds = list(dict.fromkeys(table["kind"]))
    rows = max(table.loc[table["kind"] == kind, "name"].nunique() for kind in kinds)
    figure, panels = new_figure(PAGE, 0.26 * rows + 0.8, ncols=len(kinds))
    for axes, kind in zip(panels, kinds, strict=True):
        part = table.loc[table["kind"] == kind]
        names = list(dict.fromkeys(part["name"]))[::-1]
        for row in part.to_dict("records"):
            place = names.index(row["name"]) + 0.27 * (1 - list(VARIANTS).index(row["variant"]))
            axes.barh(place, row["ratio"], height=0.26, color=VARIANTS[row["variant"]])
            axes.text(row["ratio"], place, f" {row['ratio']:.2g}", va="center", fontsize=5, color=MUTED)
        axes.axvline(1, color=COLORS[6], linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(names)), names)
        axes.set_xscale("log")
        axes.set_xlim(0.5, part["ratio"].max() * 1.8)
        axes.set_xlabel("time, in float32 products")
        axes.set_title(f"{kind}s at {sizes}")
        axes.grid(visible=False, axis="y")
    handles = [panels[0].barh(0, 0, color=color, label=label) for label, color in VARIANTS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure
