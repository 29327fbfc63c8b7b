"""Mismatch between the tensor cores of GPUs: all pairs, and what causes it."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from figures.style import COLORS, MARKERS, MUTED, PAGE, new_figure
from simlab.core.results import Results

PAIR = ("h100-bf16", "h100-fp8")
LEAST = 1e-4
SHOWN = 5
"""Models that are shown for each format."""


def draw_matrix(results: Results) -> Figure:
    """Draw RMS log rho, averaged over seeds: a row per training GPU, a column per inference GPU."""
    pairs: Any = results.table("pairs")
    policies, gpus = list(pairs["policy"].unique()), list(pairs["train"].unique())
    mean = pairs.groupby(["policy", "train", "infer"])["rms_log_rho"].mean()
    maps = [mean[policy].unstack().loc[gpus, gpus].to_numpy() for policy in policies]
    positive = mean[mean > 0]
    colors = ScalarMappable(LogNorm(positive.min(), positive.max()), "cividis")
    width = min(PAGE, 1.6 + 1.9 * len(policies))
    figure, panels = new_figure(2.9, width, ncols=len(policies), sharey=True, squeeze=False)
    for axes, policy, values in zip(panels[0], policies, maps, strict=True):
        axes.imshow(np.where(values > 0, values, np.nan), norm=colors.norm, cmap=colors.cmap)
        for (row, column), value in np.ndenumerate(values):
            dark = 0 < value < positive.max() ** 0.6 * positive.min() ** 0.4
            color = "white" if dark else "black"
            axes.text(column, row, _format(value), ha="center", va="center", fontsize=4, color=color)
        axes.set_xticks(range(len(gpus)), gpus, rotation=60, ha="right", rotation_mode="anchor", fontsize=5)
        axes.set_yticks(range(len(gpus)), gpus, fontsize=5)
        axes.set(title=policy, xlabel="inference engine")
        axes.grid(visible=False)
    panels[0][0].set_ylabel("training engine")
    figure.colorbar(colors, ax=panels[0], label="RMS log $\\rho$ (nats)", shrink=0.8)
    return figure


def _format(value: float) -> str:
    """Return two digits; 0 where the two are bitwise identical."""
    if value == 0:
        return "0"
    return f"{value:.0e}".replace("e-0", "e-") if value < 0.01 else f"{value:.2f}"


def draw_causes(results: Results) -> Figure:
    """Draw exact Shapley shares in h100-bf16/h100-fp8; accumulator widths; orders against that mismatch."""
    figure, axes = new_figure(2.7, ncols=3, width_ratios=(1, 1, 0.9))
    for axis, draw in zip(axes, (_draw_shares, _draw_bits, _draw_orders), strict=True):
        draw(axis, results)
    return figure


def _draw_shares(axes: Axes, results: Results) -> None:
    shares: Any = results.table("shares")
    policies, seeds = list(shares["policy"].unique()), list(shares["seed"].unique())
    for number, (factor, rows) in enumerate(shares.groupby("factor", sort=False)):
        x = rows["policy"].map(policies.index) + 0.25 * (number - 1) + 0.08 * rows["seed"].map(seeds.index)
        color = COLORS[3 + number]  # the first three are policies in the other panels
        axes.vlines(x, 100 * rows["low"], 100 * rows["high"], color=color, linewidth=1.4)
        axes.plot(x, 100 * rows["share"], MARKERS[3 + number], color=color, label=factor)
    axes.set_xticks(range(len(policies)), policies)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.set(ylabel="share of mean squared log $\\rho$ (%)", title="Shapley shares (bars: 95% CI)")
    axes.legend(loc="center left")


def _draw_bits(axes: Axes, results: Results) -> None:
    table: Any = results.table("bits")
    for number, policy in enumerate(table["policy"].unique()):
        for train, style in (("h100-bf16", "-"), ("b200-fp8", "--")):
            rows = table[(table["policy"] == policy) & (table["train"] == train)]
            mean = rows.groupby("bits", sort=False)["rms_log_rho"].mean()
            label = policy if style == "-" else None
            # Equal sums have no mismatch to draw on a logarithmic axis.
            points: Any = {"color": COLORS[number], "marker": MARKERS[number], "ls": style}
            axes.plot(mean.index, mean.where(mean > 0), label=label, **points)
    axes.axvline(13, color=MUTED, linewidth=0.8)
    axes.set(yscale="log", ylabel="RMS log $\\rho$ (nats)", title="Accumulator width (line: H100 FP8)")
    axes.set_xlabel("fraction bits of the accumulator\n(against BF16: solid; 25 bits: dashed)")
    axes.legend(loc="lower left", fontsize=6, handlelength=1.2)


def _draw_orders(axes: Axes, results: Results) -> None:
    pairs: Any = results.table("pairs")
    pairs = pairs[(pairs["train"] == PAIR[0]) & (pairs["infer"] == PAIR[1])]
    orders: Any = results.table("orders").merge(pairs, on=["policy", "seed"], suffixes=("", "_fp8"))
    names = list(orders["order"].unique())[::-1]
    for number, (_, rows) in enumerate(orders.groupby("policy", sort=False)):
        ratio = np.maximum(rows["rms_log_rho"] / rows["rms_log_rho_fp8"], LEAST)
        y = rows["order"].map(names.index) + 0.15 * (1 - number)
        axes.plot(ratio, y, MARKERS[number], color=COLORS[number])
    axes.set(xscale="log", title="Order alone")
    axes.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names], fontsize=6)
    axes.set_xlabel("RMS log $\\rho$ / FP8 RMS log $\\rho$\n(left edge: less)")


def draw_agreement(results: Results) -> Figure:
    """Draw the fraction of outputs of a GPU that each model of tensor cores gives bit by bit, best first."""
    table: Any = results.table("agreement")
    equal = table.groupby(["format", "candidate"], sort=False)["equal"].mean()
    formats = list(table["format"].unique())
    figure, panels = new_figure(1.9, ncols=len(formats), sharex=True, squeeze=False)
    for axes, name in zip(panels[0], formats, strict=True):
        best = equal[name].sort_values(ascending=False, kind="stable")[:SHOWN][::-1]
        colors = [COLORS[0] if share == 1 else MUTED for share in best]
        labels = ["all" if share == 1 else f"{share:.0%}" for share in best]
        axes.bar_label(axes.barh(best.index, best, color=colors, height=0.6), labels, padding=2, fontsize=5)
        axes.set(title=name, xlim=(0, 1.15), xticks=(0, 0.5, 1))
        axes.tick_params(axis="y", labelsize=5)
        axes.grid(visible=False, axis="y")
    figure.supxlabel("fraction of outputs that are bitwise equal", fontsize="medium")
    return figure
