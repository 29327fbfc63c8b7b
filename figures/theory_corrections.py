"""Bias and standard deviation of every correction at equal mismatch, and which one to take."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from figures.style import COLORS, DASHES, MARKERS, MUTED, PAGE, new_figure
from simlab.core.results import Results

SHOWN = ("none", "token IS", "token TIS", "token MIS", "sequence IS", "sequence TIS", "sequence MIS")
# The last color of the palette is black: it stays with "no correction".
STYLE = {
    name: {"color": COLORS[(i - 1) % len(COLORS)], "linestyle": DASHES[i], "marker": MARKERS[i]}
    for i, name in enumerate(SHOWN)
}
GROUPS = 64


def draw(results: Results) -> Figure:
    """Bias, spread and error at the longest length; bias by length, least error, and sample size."""
    moments, ess = results.table("moments"), results.table("ess")
    figure, axes = new_figure(PAGE, 4.6, nrows=2, ncols=3)
    longest = moments[moments.length == moments.length.max()]
    _curves(axes[0, 0], longest, "bias", "bias / |gradient|")
    _curves(axes[0, 1], longest, "std", "std of one group / |gradient|")
    _curves(axes[0, 2], longest, f"mse_{GROUPS}", f"MSE of {GROUPS} groups")
    for axis, title in zip(axes[0], ("Bias", "Spread", "Error"), strict=True):
        axis.set_title(f"{title}, T = {longest.length.iloc[0]}")
    _kept(axes[1, 0], moments)
    _best(axes[1, 1], moments)
    _sample_size(axes[1, 2], ess)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(SHOWN), columnspacing=1.0)
    return figure


def _curves(axis, table, column: str, label: str) -> None:
    for name in SHOWN:
        line = table[table.correction == name].groupby("rho_std")[column].mean()
        line = line[line > 1e-9]
        if len(line):
            axis.plot(line.index, line.values, label=name, markersize=3, **STYLE[name])
        else:
            axis.plot([], [], label=name, markersize=3, **STYLE[name])
    axis.set(xscale="log", yscale="log", xlabel="mismatch: std of rho", ylabel=label)


def _kept(axis, moments) -> None:
    doses = np.unique(moments.rho_std)
    dose = doses[np.abs(np.log(doses / 0.1)).argmin()]
    chosen = moments[moments.rho_std == dose]
    none = chosen[chosen.correction == "none"].groupby("length").bias.mean()
    for name in ("token IS", "token TIS", "token MIS", "sequence TIS", "sequence MIS"):
        line = chosen[chosen.correction == name].groupby("length").bias.mean() / none
        axis.plot(line.index, line.values, markersize=3, **STYLE[name])
    axis.axhline(1, color=MUTED, linewidth=0.8)
    axis.set(xlabel="length T", ylabel="bias / uncorrected bias", ylim=(-0.03, 1.1))
    axis.set_title(f"Bias kept, std rho {dose:.2g}")


def _best(axis, moments) -> None:
    known = moments[moments.correction.isin(SHOWN)]
    mean = known.groupby(["length", "rho_std", "correction"])[f"mse_{GROUPS}"].mean().unstack()
    # Equal to the last digits where nothing is clipped: the first name, which is the simplest, wins.
    order = mean[list(SHOWN)]
    winner = order.le(order.min(axis=1) * 1.001, axis=0).idxmax(axis=1).unstack()
    codes = winner.map(SHOWN.index).to_numpy()
    lengths, doses = winner.index.to_numpy(), winner.columns.to_numpy()
    for i, row in enumerate(codes):
        for j, code in enumerate(row):
            style = STYLE[SHOWN[code]]
            axis.plot(doses[j], i, marker=style["marker"], color=style["color"], markersize=8, linestyle="")
    present = sorted(set(codes.ravel()))
    axis.legend(
        handles=[Patch(color=STYLE[SHOWN[c]]["color"], label=SHOWN[c]) for c in present],
        loc="lower center",
        bbox_to_anchor=(0.5, -0.02),
        ncols=2,
        fontsize=6,
    )
    axis.set(xscale="log", xlabel="mismatch: std of rho", ylabel="length T", ylim=(-1.6, len(lengths) - 0.4))
    axis.set_yticks(range(len(lengths)), [str(length) for length in lengths])
    axis.set_title(f"Least MSE, {GROUPS} groups")


def _sample_size(axis, ess) -> None:
    chain = ess[ess.method == "transfer matrix"]
    doses = np.unique(chain.rho_std)
    for i, dose in enumerate(doses[:: max(1, len(doses) // 4)]):
        line = chain[chain.rho_std == dose].groupby("length").fraction.median()
        color = COLORS[i % len(COLORS)]
        axis.plot(line.index, line.values, color=color, linestyle=DASHES[i % len(DASHES)])
        # Each curve carries its dose where it is nearest to one half.
        middle = (line - 0.5).abs().idxmin()
        axis.annotate(
            f"{dose:.2g}", (middle, line[middle]), xytext=(3, 2), textcoords="offset points", color=color
        )
    axis.set(xscale="log", ylim=(0, 1.02), xlabel="length T", ylabel="ESS / samples")
    axis.set_title("Sample size, by std of rho")
