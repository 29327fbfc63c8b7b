"""Benchmarks: throughput of rounding and of emulated products, time of a step, cost of a sweep."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import isna

from figures.style import COLORS, MARKERS, MUTED, PAGE, new_figure, plain_log
from simlab.core.results import Results

PATCH = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # keeps the line of the limit off the numbers
SOURCES = {"limit": COLORS[6], "simlab": COLORS[0], "others": COLORS[1]}
OWN_METHODS = ("simlab", "simlab toward_zero", "simlab up", "simlab all traced", "simlab stochastic")
PARTS = {"rollout": COLORS[0], "score": COLORS[2], "updates": COLORS[1]}
TRACED = {"static": COLORS[0], "traced": COLORS[4]}
VARIANTS = TRACED | {"static, weights quantized": COLORS[2]}
AXES = {
    "runs": "runs, in batches of one size",
    "runs_per_batch": "runs per batch",
    "length": "response length (tokens)",
    "steps": "training steps",
}
STAGES = ("rollout", "score", "updates", "step")
WIDE = 5  # rates further apart get a logarithmic axis


def draw_quantize(results: Results) -> Figure:
    """Draw bars of throughput on a log axis, fastest on top; the line is the in-place x + 1."""
    table = results.table("throughput")
    measured = table.loc[table.status == "measured"].sort_values(by="gel_per_s")
    absent = table[table.status != "measured"]
    figure, axes = new_figure(PAGE, 0.17 * len(table) + 0.9)
    limit = measured[(measured.method == "add_one") & (measured.variant == "donated")].gel_per_s.iloc[0]
    labels = [f"{name} (not installed)" for name in absent.method]
    for y, row in enumerate(measured.to_dict("records"), start=len(labels)):
        method = row["method"]
        ours = "simlab" if method in OWN_METHODS else "others"
        source = "limit" if method in ("add_one", "np.copyto") else ours
        axes.barh(y, row["gel_per_s"], color=SOURCES[source], height=0.7)
        text = f" {row['gel_per_s']:.3g}  ({row['ratio_to_limit']:.2g} of the limit)"
        axes.text(row["gel_per_s"], y, text, va="center", fontsize=6, color=MUTED, bbox=PATCH)
        labels.append(f"{'x + 1' if method == 'add_one' else method}, {row['format']}, {row['variant']}")
    axes.axvline(limit, color=COLORS[6], linewidth=0.8, linestyle="--")
    axes.set(xscale="log", xlim=(measured.gel_per_s.min() / 2, measured.gel_per_s.max() * 8))
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.set_xlabel("throughput (billion float32 values per second)")
    axes.set_title("Quantize and dequantize at the speed of memory")
    axes.grid(visible=False, axis="y")
    return figure


def draw_linear(results: Results) -> Figure:
    """Draw the time in float32 products, one panel per kind, for the first shape of the run."""
    table = results.table("linear")
    shape = table["shape"].iloc[0]
    table = table.loc[table["shape"] == shape]
    sizes = " x ".join(map(str, results.manifest["config"]["shapes"][shape]))
    kinds = list(dict.fromkeys(table["kind"]))
    rows = max(table.loc[table["kind"] == kind, "name"].nunique() for kind in kinds)
    figure, panels = new_figure(PAGE, 0.26 * rows + 0.8, ncols=len(kinds))
    for axes, kind in zip(panels, kinds, strict=True):
        part = table.loc[table["kind"] == kind]
        names = list(dict.fromkeys(part["name"]))[::-1]
        _draw_ratios(axes, part, names, VARIANTS, spacing=0.27, height=0.26)
        axes.axvline(1, color=COLORS[6], linewidth=0.8, linestyle="--")
        axes.set_yticks(range(len(names)), names)
        axes.set(xlim=(0.5, part["ratio"].max() * 1.8), title=f"{kind.capitalize()}s at {sizes}")
    _legend_below(figure, panels[0], VARIANTS)
    return figure


def draw_tensor_cores(results: Results) -> Figure:
    """Draw the time in float32 products, one panel per shape of the run."""
    table, config = results.table("throughput"), results.manifest["config"]
    names = list(dict.fromkeys(table["name"]))[::-1]
    size = (PAGE, 0.22 * len(names) + 0.9)
    figure, panels = new_figure(*size, ncols=len(config["shapes"]), sharey=True, squeeze=False)
    for axes, (shape, sizes) in zip(panels[0], config["shapes"].items(), strict=True):
        part = table.loc[table["shape"] == shape]
        _draw_ratios(axes, part, names, TRACED, spacing=0.4, height=0.38)
        axes.axvline(config["limit"], color=COLORS[6], linewidth=0.8, linestyle="--")
        axes.set(xlim=(0.7, max(part["ratio"].max(), config["limit"]) * 1.6))
        axes.set_title(" x ".join(map(str, sizes)))
    panels[0][0].set_yticks(range(len(names)), names)
    _legend_below(figure, panels[0][0], TRACED)
    return figure


def _draw_ratios(
    axes: Axes, rows: Any, names: Sequence[str], colors: Mapping[str, str], spacing: float, height: float
) -> None:
    """Draw a bar per variant of each name, on a log axis."""
    for row in rows.to_dict("records"):
        variant = list(colors).index(row["variant"])
        y = names.index(row["name"]) + spacing * ((len(colors) - 1) / 2 - variant)
        axes.barh(y, row["ratio"], height=height, color=colors[row["variant"]])
        axes.text(row["ratio"], y, f" {row['ratio']:.2g}", va="center", fontsize=5, color=MUTED)
    axes.set(xscale="log", xlabel="time (float32 products)")
    axes.grid(visible=False, axis="y")


def _legend_below(figure: Figure, axes: Axes, colors: Mapping[str, str]) -> None:
    handles = [axes.barh(0, 0, color=color, label=label) for label, color in colors.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(colors))


def draw_step(results: Results) -> Figure:
    """Draw stacked bars of milliseconds, one per implementation, the floor on top."""
    table = results.table("stages").pivot(index="implementation", columns="stage")
    names = list(dict.fromkeys(results.table("stages")["implementation"]))[::-1]
    figure, axes = new_figure(PAGE, 0.3 * len(names) + 0.9)
    for y, name in enumerate(names):
        ms, left = table["ms"].loc[name], 0.0
        # TRL reports the time of a step only, not of its parts.
        parts = {"step": MUTED} if isna(ms["rollout"]) else PARTS
        for part, color in parts.items():
            axes.barh(y, ms[part], left=left, color=color, height=0.7)
            left += ms[part]
        text = f" {1e3 / ms['step']:.3g} steps/s ({table['floors'].loc[name, 'step']:.2g} floors)"
        axes.text(left, y, text, va="center", fontsize=6, color=MUTED)
    axes.set_yticks(range(len(names)), ["matrix products only" if n == "floor" else n for n in names])
    axes.set(xlim=(0, table["ms"]["step"].max() * 1.35), xlabel="time per step (ms)")
    axes.grid(visible=False, axis="y")
    _legend_below(figure, axes, PARTS | {"step as a whole": MUTED})
    return figure


def draw_sweep_cost(results: Results) -> Figure:
    """Draw the seconds of a sweep, a panel per axis, with the fitted exponent."""
    cost, fits = results.table("cost"), results.table("fits").set_index("axis")
    figure, panels = new_figure(PAGE, 2.0, ncols=len(AXES))
    for panel, (axis, label) in zip(panels, AXES.items(), strict=True):
        rows = cost.loc[cost["axis"] == axis]
        x = np.asarray(rows["value"], float)
        panel.plot(x, rows["seconds"], "o", color=COLORS[0])
        exponent, factor = fits.loc[axis, "exponent"], fits.loc[axis, "factor"]
        panel.plot(x, factor * x**exponent, color=MUTED, lw=0.8)
        panel.set(xscale="log", yscale="log", xlabel=label, title=f"Exponent {exponent:.2f}")
        panel.set_xticks(x, [f"{value:g}" for value in x])
        panel.minorticks_off()
        plain_log(panel.yaxis)
    panels[0].set_ylabel("time (s)")
    return figure


def draw_device(results: Results) -> Figure:
    """Draw run-steps per second against the runs per batch, and the fraction of the roofline by stage."""
    rows = results.table("batch_sizes").query("status == 'measured'")
    figure, (speed, fraction) = new_figure(PAGE, 2.4, ncols=2)
    step = rows.query("stage == 'step'")
    speed.plot(step["runs_per_batch"], step["run_steps_per_s"], marker=MARKERS[0], color=COLORS[0])
    speed.set_ylabel("throughput (run-steps per second)")
    rates, sizes = np.asarray(step["run_steps_per_s"]), np.asarray(step["runs_per_batch"])
    if rates.max() > WIDE * rates.min():
        speed.set_yscale("log")
        plain_log(speed.yaxis)
    else:
        speed.set_ylim(0, 1.1 * rates.max())
    for stage, color, marker in zip(STAGES, COLORS, MARKERS, strict=False):
        part = rows.query("stage == @stage")
        fraction.plot(part["runs_per_batch"], part["of_roofline"], marker=marker, color=color, label=stage)
    fraction.set(ylabel="fraction of the roofline", ylim=(0, None))
    figure.legend(loc="outside upper right", ncols=len(STAGES))
    for panel in (speed, fraction):
        panel.set(xscale="log", xlabel="runs per batch")
        panel.set_xticks(sizes, [f"{size:g}" for size in sizes])
        panel.minorticks_off()
    return figure
