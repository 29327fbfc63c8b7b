"""Mean rho by probability of the token, sorted by either policy, for rounded and for noisy logits."""

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, DASHES, MARKERS, MUTED, PAGE, new_figure
from simlab.core.results import Results

LEAST_MASS = 1e-3


def draw(results: Results) -> Figure:
    """Two panels, one per policy that sorts."""
    table = results.table("survival")
    table = table.loc[table.mass > LEAST_MASS]
    figure, axes = new_figure(PAGE, 2.8, ncols=2, sharey=True)
    engines = [name for name in table.engine.unique() if name != "predicted"]
    for axis, by in zip(axes, ("train", "infer"), strict=True):
        chosen = table.loc[table.by == by]
        for i, name in enumerate(engines):
            line = chosen.loc[chosen.engine == name]
            center = np.sqrt(line.low * line.high)
            axis.plot(
                center, line.mean_rho - 1, color=COLORS[i], linestyle=DASHES[i], marker=MARKERS[i], label=name
            )
        line = chosen.loc[chosen.engine == "predicted"]
        axis.plot(
            np.sqrt(line.low * line.high),
            line.mean_rho - 1,
            color=MUTED,
            linewidth=0.9,
            label="predicted (noise)",
        )
        axis.axhline(0, color=MUTED, linewidth=0.6)
        axis.set(xscale="log", xlabel=f"probability under pi_{by}", title=f"Sorted by pi_{by}")
    axes[0].set(ylabel="mean of rho - 1")
    for axis in axes:
        axis.set_yscale("symlog", linthresh=1e-3)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure
