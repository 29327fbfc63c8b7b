"""Where the time of one training step goes, beside its matrix products alone and the same step elsewhere."""

from matplotlib.figure import Figure
from pandas import isna

from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

PARTS = {"rollout": COLORS[0], "score": COLORS[2], "updates": COLORS[1]}


def draw(results: Results) -> Figure:
    """Stacked bars of milliseconds, one per implementation, the floor on top."""
    table = results.table("stages").pivot(index="implementation", columns="stage")
    names = list(dict.fromkeys(results.table("stages")["implementation"]))[::-1]
    figure, axes = new_figure(PAGE, 0.3 * len(names) + 0.9)
    for height, name in enumerate(names):
        ms, left = table["ms"].loc[name], 0.0
        if isna(ms["rollout"]):  # TRL's step is only known whole
            axes.barh(height, ms["step"], color=MUTED, height=0.7)
            left = ms["step"]
        else:
            for part, color in PARTS.items():
                axes.barh(height, ms[part], left=left, color=color, height=0.7)
                left += ms[part]
        text = f" {1e3 / ms['step']:.3g} steps/s ({table['floors'].loc[name, 'step']:.2g} floors)"
        axes.text(left, height, text, va="center", fontsize=6, color=MUTED)
    axes.set_yticks(range(len(names)), ["matrix products alone" if n == "floor" else n for n in names])
    axes.set_xlim(0, table["ms"]["step"].max() * 1.35)
    axes.set_xlabel("milliseconds per step")
    axes.grid(visible=False, axis="y")
    parts = PARTS | {"known whole only": MUTED}
    handles = [axes.barh(0, 0, color=color, label=part) for part, color in parts.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(parts))
    return figure
