"""Exact results: residuals and bounds, bias and variance of corrections, survival bias."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import COLORS, DASHES, MUTED, LineStyle, line_style, new_figure, plain_log
from simlab.core.results import Results

SMALLEST = 1e-17
VERDICTS = {"holds": ("o", COLORS[0]), "false as printed": ("X", COLORS[1])}
# Top to bottom, without two that differ little from a neighbor (per-sequence ACRL, geometric MIS).
_NAMES = (
    "none", "ACRL", "veto", "geometric mask", "k3 mask", "geometric TIS", "GMPO pooled TIS", "IcePop",
    "token IS", "token TIS", "token MIS", "sequence IS^1/2", "sequence MIS", "sequence TIS", "sequence IS",
)  # fmt: skip
CORRECTIONS = dict(zip(_NAMES, _NAMES, strict=True)) | {
    "none": "no correction", "ACRL": "ACRL, Y = 2X", "veto": "veto, $\\rho$ < 0.5",
    "GMPO pooled TIS": "GMPO, pooled TIS", "sequence IS^1/2": "sequence IS, root",
}  # fmt: skip
OLD = {*CORRECTIONS, "ACRL per sequence", "geometric MIS"}
# Families of `recent_corrections.FAMILIES` and what drives the engines apart in them.
DRIFTS = {"more noise": "Noise grows", "sharper policy": "Policy sharpens", "both": "Both"}
LINES = {"token TIS": 6, "sequence MIS": 6, "sequence TIS": -11}  # where the name stands, in points
LEVELS = (0.1, 0.3)
GROUPS = 64
MOMENTS = {
    "bias": ("Bias", "|mean - gradient| / |gradient|"),
    "std": ("Standard deviation", "std of one group / |gradient|"),
    f"mse_{GROUPS}": ("MSE", f"MSE of {GROUPS} groups / |gradient|²"),
}
LEAST_MASS = 1e-3
PANELS = {
    "Noise: bias in bins of $\\pi_{infer}$": {"gaussian noise": "noise"},
    "Truncation: rare below 1": {"e4m3fn truncated": "E4M3", "bf16 truncated": "BF16"},
    "To nearest: rare at 1": {"e4m3fn": "E4M3", "bf16": "BF16"},
}
# Filled and solid: sorted by pi_train. Open and dashed: by pi_infer.
SORTED: dict[str, Any] = {"train": {"ls": "-"}, "infer": {"ls": "--", "markerfacecolor": "white"}}
PI = {"train": "$\\pi_{train}$", "infer": "$\\pi_{infer}$"}
ENGINES: dict[str, Any] = {
    "noise": {"color": COLORS[2], "marker": "^", "ms": 3.5},
    "E4M3": {"color": COLORS[1], "marker": "s", "ms": 3.5},
    "BF16": {"color": COLORS[0], "marker": "o", "ms": 3.5},
}


def draw_residuals(results: Results) -> Figure:
    """Draw one line per row of the theory board: residuals on the left, measured over bound on the right."""
    table: Any = results.table("rows")
    bounded = table["tightness"].notna()
    figure, (left, right) = new_figure(5.4, ncols=2, width_ratios=(1.5, 1))
    _draw_rows(left, table[~bounded].to_dict("records"), "residual", SMALLEST)
    words = "residual, relative or against its limit (left edge: zero)"
    left.set(xlabel=words, title="Identities, signs and orders")
    _draw_rows(right, table[bounded].to_dict("records"), "tightness", 1e-2)
    right.axvline(1, color=MUTED, linewidth=0.8)
    right.set(xlabel="measured / bound", title="Bounds")
    handles, names = right.get_legend_handles_labels()
    labels = [f"{name} ({(table['verdict'] == name).sum()})" for name in names]
    figure.legend(handles, labels, loc="outside lower right", ncols=2)
    return figure


def _draw_rows(axes: Axes, rows: list[dict], column: str, least: float) -> None:
    for verdict, (marker, color) in VERDICTS.items():
        chosen = [(y, row[column]) for y, row in enumerate(rows) if row["verdict"] == verdict]
        y, values = np.array(chosen, float).reshape(-1, 2).T
        axes.plot(np.maximum(values, least), y, marker, color=color, linestyle="none", label=verdict)
    labels = [f"{row['claim']}  {row['equation']}" for row in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=6)
    axes.set(xscale="log", ylim=(len(rows) - 0.5, -0.5))


def draw_corrections(results: Results) -> Figure:
    """Draw every correction at the longest length; bias by length, least error, and sample size."""
    moments = results.table("moments")
    figure, axes = new_figure(5.4, nrows=2, ncols=3, height_ratios=(1.5, 1))
    longest = int(moments.length.max())
    _draw_moments(axes[0], moments[moments.length == longest], CORRECTIONS, f", T = {longest}", fontsize=7)
    axes[0, 0].legend(loc="lower right", fontsize=6, frameon=True, framealpha=0.9)
    _draw_relative_bias(axes[1, 0], moments)
    _draw_best(axes[1, 1], moments)
    _draw_sample_size(axes[1, 2], results.table("ess"))
    return figure


def draw_recent_corrections(results: Results) -> Figure:
    """Draw bias and MSE of old and new corrections at one length, and the tokens that regions drop."""
    recent, masked, old = (results.table(name) for name in ("recent", "masked", "moments"))
    length = int(recent.length.max())
    table = pd.concat([old[old.length == length], recent[recent.length == length]])
    names = CORRECTIONS | {str(name): str(name) for name in dict.fromkeys(recent.correction)}
    figure, axes = new_figure(6.4, nrows=2, ncols=3, height_ratios=(2, 1))
    _draw_moments(axes[0], table, names, f", T = {length}")
    for axis in axes[0]:
        axis.axhline(len(CORRECTIONS) - 0.5, color=MUTED, linewidth=0.8)
    words = "Below the line: corrections of 2026"
    figure.legend(*axes[0, 1].get_legend_handles_labels(), loc="outside upper center", ncols=2, title=words)
    for axis, (family, title) in zip(axes[1], DRIFTS.items(), strict=True):
        _draw_masked(axis, masked[masked.family == family])
        axis.set_title(title)
    axes[1, 0].set_ylabel("fraction of tokens dropped")
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def _draw_masked(axis: Axes, rows: Any) -> None:
    """Draw the fraction that each region drops over the gap between the engines."""
    level = "noise" if rows.scale.nunique() == 1 else "scale"
    mean = rows.groupby(["rule", level])[["gap", "masked"]].mean()
    for number, rule in enumerate(dict.fromkeys(rows.rule)):
        axis.plot(mean.loc[rule].gap, mean.loc[rule].masked, label=rule, **line_style(number))
    axis.set(xscale="log", xlabel="KL per token (nats)", ylim=(-0.02, None))
    if mean.gap.max() < 100 * mean.gap.min():
        plain_log(axis.xaxis)


def draw_all_corrections(results: Results) -> Figure:
    """Draw bias, spread and MSE of every correction at one setting, the least error on top."""
    table: Any = results.table("moments")
    level = _nearest(table.rho_std, max(LEVELS))
    error = table[table.rho_std == level].groupby("correction")[f"mse_{GROUPS}"].mean().sort_values()
    names = {name: CORRECTIONS.get(name, name) for name in map(str, error.index)}
    figure, axes = new_figure(5.6, ncols=3)
    _draw_moments(axes, table, names)
    for name, label in zip(names, axes[0].get_yticklabels(), strict=True):
        label.set_fontweight("normal" if name in OLD else "bold")
    words = f"Sorted by MSE at std of $\\rho$ {level:.2g}; bold: corrections of 2026"
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=2, title=words)
    return figure


def _nearest(values: Any, target: float) -> float:
    values = np.unique(values)
    return float(values[np.abs(np.log(values / target)).argmin()])


def _draw_moments(
    axes: Any, table: Any, names: Mapping[str, str], where: str = "", fontsize: int = 6
) -> None:
    """Draw bias, spread and MSE with one row per correction of `names`, at two levels of noise."""
    rows, levels = np.arange(len(names)), dict.fromkeys(_nearest(table.rho_std, level) for level in LEVELS)
    for axis, (column, (title, label)) in zip(axes, MOMENTS.items(), strict=True):
        for level, color, marker, face in zip(levels, COLORS, "os", (COLORS[0], "white"), strict=False):
            mean = table[table.rho_std == level].groupby("correction")[column].mean()
            style = {"color": color, "markerfacecolor": face, "markersize": 4.5}
            axis.plot(mean[list(names)], rows, marker, label=f"std of $\\rho$ {level:.2g}", **style)
        if column.startswith("mse"):
            axis.set_xscale("log")
            plain_log(axis.xaxis)
        else:
            axis.set_xlim(left=0)
        axis.set(title=title + where, xlabel=label, ylim=(len(names) - 0.5, -0.5))
        axis.set_yticks(rows, list(names.values()) if axis is axes[0] else [], fontsize=fontsize)
        axis.grid(axis="x", visible=False)


def _draw_relative_bias(axis: Axes, moments: Any) -> None:
    level = _nearest(moments.rho_std, 0.1)
    chosen = moments[moments.rho_std == level]
    bias = chosen.groupby(["correction", "length"]).bias.mean()
    for number, (name, offset) in enumerate(LINES.items()):
        line = bias[name] / bias["none"]
        axis.plot(line.index, line.values, **line_style(number))
        middle = len(line) // 2
        text: Any = {"textcoords": "offset points", "ha": "center", "color": COLORS[number]}
        axis.annotate(CORRECTIONS[name], (line.index[middle], line.values[middle]), (0, offset), **text)
    axis.axhline(1, color=MUTED, linewidth=0.8)
    axis.set(xlabel="length T (tokens)", ylabel="bias / bias without correction", ylim=(-0.16, 1.1))
    axis.set_title(f"Bias kept, std of $\\rho$ {level:.2g}")


def _draw_best(axis: Axes, moments: Any) -> None:
    known = moments[moments.correction.isin(list(CORRECTIONS))]
    mean = known.groupby(["length", "rho_std", "correction"])[f"mse_{GROUPS}"].mean().unstack()
    # Equal to the last digits where nothing is clipped: the plainest name wins.
    order = mean[list(dict.fromkeys(["none", "token IS", "sequence IS", *CORRECTIONS]))]
    winner = order.le(order.min(axis=1) * 1.001, axis=0).idxmax(axis=1).unstack()
    present = [name for name in CORRECTIONS if (winner == name).to_numpy().any()]
    for number, name in enumerate(present):
        rows, columns = np.nonzero((winner == name).to_numpy())
        style: LineStyle = {**line_style(number % len(COLORS)), "ls": ""}
        axis.plot(winner.columns[columns], rows, markersize=6, label=CORRECTIONS[name], **style)
    legend = axis.legend(loc="lower center", ncols=2, fontsize=6, columnspacing=0.8, handletextpad=0)
    for handle in legend.get_lines():
        handle.set_markersize(5)
    room = 0.8 + 0.7 * ((len(present) + 1) // 2)
    axis.set(xscale="log", xlabel="std of $\\rho$", ylabel="length T (tokens)")
    axis.set(ylim=(-room, len(winner) - 0.4), title=f"Least MSE, {GROUPS} groups")
    axis.set_yticks(range(len(winner)), winner.index)


def _draw_sample_size(axis: Axes, ess: Any) -> None:
    chain = ess[ess.method == "transfer matrix"]
    levels = np.unique(chain.rho_std)
    for i, level in enumerate(levels[:: max(1, len(levels) // 4)]):
        line = chain[chain.rho_std == level].groupby("length").fraction.median()
        color = COLORS[i % len(COLORS)]
        axis.plot(line.index, line.values, color=color, linestyle=DASHES[i % len(DASHES)])
        # The level stands where its curve is nearest to one half.
        middle = (line - 0.5).abs().idxmin()
        text: Any = {"textcoords": "offset points", "color": color}
        axis.annotate(f"{level:.2g}", (middle, line[middle]), (3, 2), **text)
    axis.set(xscale="log", ylim=(0, 1.02), xlabel="length T (tokens)", ylabel="effective samples / samples")
    axis.set_title("Effective samples, by std of $\\rho$")


def draw_survival_bias(results: Results) -> Figure:
    """Draw mean rho by probability of the token: noise, truncation, and rounding to nearest."""
    table = results.table("survival")
    table = table.loc[table.mass > LEAST_MASS]

    def draw_curve(axis: Axes, engine: str, by: str, **style: Any) -> None:
        line = table.loc[(table.engine == engine) & (table.by == by)]
        axis.plot(np.sqrt(line.low * line.high), 100 * (line.mean_rho - 1), **style)

    figure, axes = new_figure(2.7, ncols=3, sharey=True)
    for axis, (title, engines) in zip(axes, PANELS.items(), strict=True):
        for engine, label in engines.items():
            for by, style in SORTED.items():
                draw_curve(axis, engine, by, label=f"{label}, by {PI[by]}", **ENGINES[label], **style)
        axis.axhline(0, color="black", linewidth=0.7)
        axis.set(xscale="log", xlabel="token probability", title=title)
    for by in SORTED:
        label = "first-order theory" if by == "train" else None
        draw_curve(axes[0], "predicted", by, color=MUTED, linewidth=0.8, label=label)
    for axis in axes:
        axis.legend(loc="upper left" if axis is not axes[0] else "lower left", fontsize=6)
    axes[0].set(ylabel="mean of $\\rho - 1$ (%)")
    return figure
