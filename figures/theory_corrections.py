"""Bias, spread and error of every correction at equal mismatch, and which one to take."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures.style import COLORS, DASHES, MARKERS, MUTED, PAGE, new_figure, plain_log
from simlab.core.results import Results

# Top to bottom. Left out: two that differ little from a neighbor (per-sequence ACRL, geometric MIS).
SHOWN = {
    "none": "no correction",
    "ACRL": "ACRL, Y = 2X",
    "veto": "veto, rho < 0.5",
    "geometric mask": "geometric mask",
    "k3 mask": "k3 mask",
    "geometric TIS": "geometric TIS",
    "GMPO pooled TIS": "GMPO, pooled TIS",
    "IcePop": "IcePop",
    "token IS": "token IS",
    "token TIS": "token TIS",
    "token MIS": "token MIS",
    "sequence IS^1/2": "sequence IS, root",
    "sequence MIS": "sequence MIS",
    "sequence TIS": "sequence TIS",
    "sequence IS": "sequence IS",
}
LINES = ("token TIS", "sequence MIS", "sequence TIS")
DOSES = (0.1, 0.3)
GROUPS = 64


def draw(results: Results) -> Figure:
    """Every correction at the longest length; bias by length, least error, and sample size."""
    moments, ess = results.table("moments"), results.table("ess")
    figure, axes = new_figure(PAGE, 5.4, nrows=2, ncols=3, height_ratios=(1.5, 1))
    longest = int(moments.length.max())
    titles = {"bias": "Bias", "std": "Spread", f"mse_{GROUPS}": "MSE"}
    for axis, (column, title) in zip(axes[0], titles.items(), strict=True):
        _dots(axis, moments[moments.length == longest], column)
        axis.set_title(f"{title}, T = {longest}")
    axes[0, 0].set_yticks(range(len(SHOWN)), list(SHOWN.values()))
    axes[0, 0].set(xlabel="|mean - gradient| / |gradient|")
    axes[0, 1].set(xlabel="std of one group / |gradient|")
    axes[0, 2].set(xlabel=f"MSE of {GROUPS} groups / |gradient|²")
    _kept(axes[1, 0], moments)
    _best(axes[1, 1], moments)
    _sample_size(axes[1, 2], ess)
    return figure


def _nearest(values, target: float) -> float:
    values = np.unique(values)
    return float(values[np.abs(np.log(values / target)).argmin()])


def _dots(axis, table, column: str) -> None:
    """One row per correction, two doses."""
    rows = np.arange(len(SHOWN))
    doses = dict.fromkeys(_nearest(table.rho_std, dose) for dose in DOSES)
    for dose, color, marker, face in zip(doses, COLORS, "os", (COLORS[0], "white"), strict=False):
        mean = table[table.rho_std == dose].groupby("correction")[column].mean()
        axis.plot(
            mean[list(SHOWN)],
            rows,
            linestyle="",
            marker=marker,
            color=color,
            markerfacecolor=face,
            markersize=4.5,
            label=f"std of rho {dose:.2g}",
        )
    if column.startswith("mse"):
        axis.set_xscale("log")
        plain_log(axis.xaxis)
    else:
        axis.set_xlim(left=0)
    axis.set_ylim(len(SHOWN) - 0.5, -0.5)
    axis.set_yticks(rows, [])
    axis.grid(axis="x", visible=False)
    if column == "bias":
        axis.legend(loc="lower right", fontsize=6, frameon=True, framealpha=0.9)


def _kept(axis, moments) -> None:
    dose = _nearest(moments.rho_std, 0.1)
    chosen = moments[moments.rho_std == dose]
    none = chosen[chosen.correction == "none"].groupby("length").bias.mean()
    for i, name in enumerate(LINES):
        line = chosen[chosen.correction == name].groupby("length").bias.mean() / none
        axis.plot(line.index, line.values, color=COLORS[i], linestyle=DASHES[i], marker=MARKERS[i])
        at = len(line) // 2
        axis.annotate(
            SHOWN[name],
            (line.index[at], line.values[at]),
            xytext=(0, 6 if name != "sequence TIS" else -11),
            textcoords="offset points",
            ha="center",
            color=COLORS[i],
        )
    axis.axhline(1, color=MUTED, linewidth=0.8)
    axis.set(xlabel="length T", ylabel="bias / uncorrected bias", ylim=(-0.16, 1.1))
    axis.set_title(f"Bias kept, std of rho {dose:.2g}")


def _best(axis, moments) -> None:
    known = moments[moments.correction.isin(list(SHOWN))]
    mean = known.groupby(["length", "rho_std", "correction"])[f"mse_{GROUPS}"].mean().unstack()
    # Equal to the last digits where nothing is clipped: the plainest name wins.
    plain = ["none", "token IS", "sequence IS", *(name for name in SHOWN if name != "none")]
    order = mean[list(dict.fromkeys(plain))]
    winner = order.le(order.min(axis=1) * 1.001, axis=0).idxmax(axis=1).unstack()
    lengths, doses = winner.index.to_numpy(), winner.columns.to_numpy()
    present = [name for name in SHOWN if (winner == name).to_numpy().any()]
    styles: dict[str, dict[str, Any]] = {
        name: {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)], "linestyle": ""}
        for i, name in enumerate(present)
    }
    for i, length in enumerate(lengths):
        for dose in doses:
            axis.plot(dose, i, markersize=6, **styles[winner.loc[length, dose]])
    handles = [Line2D([], [], markersize=5, label=SHOWN[name], **styles[name]) for name in present]
    axis.legend(handles=handles, loc="lower center", ncols=2, fontsize=6, columnspacing=0.8, handletextpad=0)
    rows = (len(present) + 1) // 2
    axis.set(
        xscale="log", xlabel="std of rho", ylabel="length T", ylim=(-0.8 - 0.7 * rows, len(lengths) - 0.4)
    )
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
    axis.set_title("ESS, by std of rho")
