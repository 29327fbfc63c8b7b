"""Softmax in every number format: levels, spread of the probability ratio, rounding placements."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import COLORS, DASHES, MARKERS, MUTED, new_figure
from simlab.core.results import Results

HALF_LEFT = 0.5  # formats that lose more vectors of logits than this are named below, not drawn
ROUNDINGS = {
    ("logits-probs", "toward_zero"): "both, round toward zero",
    ("logits-probs", "nearest_even"): "logits and probabilities",
    ("logits", "nearest_even"): "logits only",
    ("probs", "nearest_even"): "probabilities only",
}
# Mantissa bits of a format, and where its name stands from its star, in points.
STARS = {"bf16": (7, (6, 4)), "fp16": (10, (5, 2)), "e4m3fn": (3, (-14, 6)), "e3m4": (4, (6, -2))}
RATIO_COLUMNS = {"mean": "Mean", "std": "Std", "max": "Largest", "min": "Smallest"}
HALF_DIGIT = 5e-5
FEW = 0.1
PAPER = COLORS[1]
SOURCES = {"smollm2": "SmolLM2-135M", "gaussian": "Gaussian"}
FORMATS = ("tf32", "fp16", "bf16", "e4m3fn", "e5m2")
LEAST_MASS = 0.005


def draw_levels(results: Results) -> Figure:
    """Draw one row per format: all octaves on the left, a quarter octave in BF16 steps on the right."""
    histograms: Any = results.table("histograms")
    facts = _summarize_formats(results)
    rows = _merge_equal(histograms, [name for name in facts.index if facts.loc[name, "drawn"] >= HALF_LEFT])
    height = 0.42 * len(rows) + 1.1
    figure, (octaves, steps) = new_figure(height, ncols=2, width_ratios=(3, 2), sharey=True)
    for base, (label, name) in zip(range(len(rows) - 1, -1, -1), rows, strict=True):
        part, fact = histograms[histograms["format"] == name], facts.loc[name]
        _draw_ridge(octaves, part[part["window"] == "octaves"], base, np.log2)
        _draw_ridge(steps, part[part["window"] == "steps"], base, lambda left: left * 128 * 1024)
        octaves.text(-14.1, base + 0.12, label, ha="right", fontsize=8, weight="bold")
        steps.text(215.6, base + 0.3, f"{fact['levels']:,.0f} levels", fontsize=7)
        lost = f"{fact['lost']:.1%} lost" if fact["lost"] >= 0.0005 else "none lost"
        steps.text(215.6, base + 0.02, lost, fontsize=7, color=MUTED)
    octaves.set(title="All sampled tokens", xlabel="token probability p")
    octaves.set(xlim=(-14, -3), ylim=(-0.08, len(rows)))
    octaves.set_xticks(range(-14, -2, 2), [f"$2^{{{tick}}}$" for tick in range(-14, -2, 2)])
    steps.set(title="A quarter octave around $p = 2^{-9.4}$", xlim=(181, 215))
    steps.set_xlabel("token probability p, in BF16 steps of $2^{-17}$")
    for axes in (octaves, steps):
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False)
    gone = [name for name in facts.index if facts.loc[name, "drawn"] < HALF_LEFT]
    seeds = histograms["seed"].nunique()
    figure.supxlabel(
        f"Height: tokens per bin, scaled per row; dark: range of {seeds} seeds. Gaussian logits, V = 2048. "
        "Levels: distinct values in the sample of a seed.\n"
        f"Lost: probability of tokens rounded to zero. All or nearly all lost: {', '.join(gone) or 'none'}.",
        fontsize=7,
        color=MUTED,
    )
    return figure


def _select(table: Any, placement: str = "logits-probs", rounding: str = "nearest_even") -> Any:
    """Return the rows of a placement and a rounding at temperature 1 (if listed) and V = 2048 (if listed)."""
    chosen = table[(table["placement"] == placement) & (table["rounding"] == rounding)]
    for column, value in (("temperature", 1.0), ("vocabulary", 2048)):
        chosen = chosen[chosen[column] == value] if column in chosen else chosen
    return chosen


def _summarize_formats(results: Results) -> Any:
    """Return levels in a sample, fraction of distributions left, probability lost; finest format first."""
    ratios: Any = results.table("ratios")
    reading = int(results.manifest["config"]["per_vector_of_formats"])
    chosen = ratios[(ratios["placement"] == "logits-probs") & (ratios["per_vector"] == reading)]
    facts = chosen.groupby("format")[["levels", "drawn"]].mean()
    lost = _select(results.table("sweep")).set_index("format")["lost"]
    return facts.join(lost).round({"lost": 3}).sort_values(["lost", "levels"], ascending=[True, False])


def _merge_equal(histograms: Any, names: list[str]) -> list[tuple[str, str]]:
    """Return (label, format), formats with equal histograms under one label."""
    groups: dict[bytes, list[str]] = {}
    for name in names:
        counts = histograms.loc[histograms["format"] == name, "count"].to_numpy()
        groups.setdefault(counts.tobytes(), []).append(name)
    return [("\n".join(group), group[0]) for group in groups.values()]


def _draw_ridge(axes: Axes, part: Any, base: float, scale: Any) -> None:
    counts = part.pivot_table(index="left", columns="seed", values="count").to_numpy()
    x = scale(np.unique(part["left"]))
    height = 0.85 / max(counts.max(), 1)
    low, mean, high = (base + height * f(axis=1) for f in (counts.min, counts.mean, counts.max))
    axes.fill_between(x, base, mean, step="post", color=COLORS[4], linewidth=0)
    axes.fill_between(x, low, high, step="post", color=COLORS[0], alpha=0.7, linewidth=0)
    axes.axhline(base, color=MUTED, linewidth=0.5)


def draw_spread(results: Results) -> Figure:
    """Draw measured spreads as points with intervals, theory as lines, named formats as stars."""
    by_bits: Any = results.table("spread")
    figure, (axes,) = new_figure(3.3)
    for number, ((placement, rounding), label) in enumerate(ROUNDINGS.items()):
        part = by_bits[(by_bits["placement"] == placement) & (by_bits["rounding"] == rounding)]
        part = part.sort_values("mantissa_bits")
        bits, color = part["mantissa_bits"].to_numpy(), COLORS[number]
        axes.plot(bits, part["theory"], color=color, linestyle=DASHES[number], linewidth=1)
        low, high = part["std_low"].clip(lower=1e-9), part["std_high"]
        axes.vlines(bits, low, high, color=color, linewidth=2, alpha=0.5)
        axes.plot(bits, part["std"], MARKERS[number], color=color, markersize=3.5, label=label)
    # Formats have a smallest exponent too: they leave the line where probabilities underflow.
    measured = _select(results.table("sweep")).set_index("format")["std"]
    star = {"color": "black", "markersize": 8, "markerfacecolor": "white"}
    for name, (bits, nudge) in STARS.items():
        axes.plot(bits, measured[name], "*", zorder=5, **star)
        text = {"textcoords": "offset points", "fontsize": 7, "zorder": 6}
        axes.annotate(name, (bits, measured[name]), nudge, **text)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="mantissa bits m", ylabel="std of p(float32) / p(format)", xlim=(0.5, 15.5))
    axes.set_xticks(np.arange(1, 16, 2))
    axes.plot([], [], "*", label="formats, short exponents", **star)
    axes.plot([], [], "-", color=MUTED, linewidth=1, label="theory, slope $2^{-m}$")
    axes.legend(title="rounded values", loc="lower left", title_fontsize=7)
    return figure


def draw_placements(results: Results) -> Figure:
    """Draw one panel per column of the table, one row per placement, the paper as a line."""
    fits: Any = results.table("fit")
    reading = fits["per_vector"].min()
    fits = fits[fits["per_vector"] == reading]
    order = list(fits[fits["column"] == "std"].sort_values("ours", ascending=False)["placement"])
    ratios: Any = results.table("ratios")
    chosen = ratios[(ratios["per_vector"] == reading) & (ratios["format"] == "bf16")]
    levels = chosen.groupby("placement")[["levels", "levels_float32"]].mean()
    few, agrees = levels["levels"] < FEW * levels["levels_float32"], fits.groupby("placement")["inside"].all()
    colors = {name: COLORS[0] if agrees[name] else MUTED for name in order}
    filled = {name: COLORS[0] if agrees[name] and few[name] else "white" for name in order}
    styles = {name: {"color": colors[name], "markerfacecolor": filled[name]} for name in order}
    figure, (*panels, last) = new_figure(2.9, ncols=len(RATIO_COLUMNS) + 1, sharey=True)
    for axes, (column, title) in zip(panels, RATIO_COLUMNS.items(), strict=True):
        rows = fits[fits["column"] == column].set_index("placement").loc[order]
        paper = rows["paper"].iloc[0]
        axes.axvspan(paper - HALF_DIGIT, paper + HALF_DIGIT, color=PAPER, alpha=0.5, linewidth=0)
        axes.axvline(paper, color=PAPER, linewidth=0.8)
        for y, (name, row) in enumerate(rows.iterrows()):
            bar = {"color": colors[name], "linewidth": 2.2, "solid_capstyle": "butt"}
            axes.plot([row["low"], row["high"]], [y, y], **bar)
            axes.plot(row["ours"], y, "o", **styles[name])
        axes.set_title(title)
        axes.set_xlabel(f"paper:\n{paper:.4f}", color=PAPER)
        axes.locator_params(axis="x", nbins=3)
        axes.ticklabel_format(axis="x", useOffset=False)
    for y, name in enumerate(order):
        last.plot(levels.loc[name, "levels"], y, "o", **styles[name])
    last.set(title="Levels", xscale="log", xlim=(100, 2e5))
    last.set_xlabel("distinct values\n(paper: few)", color=PAPER)
    panels[0].set(xlim=(0.99965, 1.00015), xticks=[0.9997, 0.9999, 1.0001])
    panels[0].set_yticks(np.arange(len(order)), order)
    for label, name in zip(panels[0].get_yticklabels(), order, strict=True):
        label.set(color=colors[name], weight="normal" if filled[name] == "white" else "bold")
    figure.supxlabel(
        "p(float32) / p(BF16) of sampled tokens, by rounded values. Bars: 95% prediction interval of the "
        "mean of five seeds.\nBlue: all four columns agree with the paper. Filled: the levels agree too.",
        fontsize=7,
        color=MUTED,
    )
    return figure


def draw_real(results: Results) -> Figure:
    """Draw std of the ratio by probability and by format, and levels per distribution."""
    figure, (octaves, stds, levels) = new_figure(2.7, ncols=3, width_ratios=(5, 4, 4))
    _draw_octaves(octaves, results.table("real_octaves"))
    real, gaussian = results.table("real"), results.table("sweep")
    centered = "SmolLM2, largest logit\nsubtracted before rounding"
    y = np.arange(len(FORMATS))
    for label, table, placement, color, marker, face in (
        ("Gaussian", gaussian, "logits-probs", COLORS[1], "s", "white"),
        ("SmolLM2", real, "logits-probs", COLORS[0], "o", COLORS[0]),
        (centered, real, "centered-logits", COLORS[2], "D", "white"),
    ):
        chosen = _select(table, placement).set_index("format").loc[list(FORMATS)]
        style = {"color": color, "markerfacecolor": face, "markersize": 5, "label": label}
        for axes, column in ((stds, "std"), (levels, "levels")):
            axes.plot(chosen[column], y, marker, **style)
    for axes in (stds, levels):
        axes.set(xscale="log", ylim=(len(FORMATS) - 0.5, -0.5))
        axes.set_yticks(y, FORMATS)
    stds.set(title="By format", xlabel="std of p(float32) / p(format)")
    levels.set(title="Levels", xlabel="distinct values per distribution")
    figure.legend(*stds.get_legend_handles_labels(), loc="outside lower right", ncols=3)
    return figure


def _draw_octaves(axes: Axes, octaves: Any) -> None:
    for (source, label), color, marker in zip(SOURCES.items(), COLORS, MARKERS, strict=False):
        part = octaves[(octaves["source"] == source) & (octaves["mass"] > LEAST_MASS)]
        x = part["octave"] + 0.5
        axes.plot(x, part["theory"], color=color, linewidth=1)
        face = color if source == "smollm2" else "white"
        axes.plot(x, part["std"], marker, color=color, markerfacecolor=face)
        height = 1.25 * part["std"].max()
        axes.text(x.mean(), height, label, color=color, ha="center", weight="bold")
    axes.plot([], [], "-", color=MUTED, linewidth=1, label="first-order theory")
    axes.set(yscale="log", title="BF16, by probability", ylim=(1e-3, 0.1))
    axes.set(xlabel="token probability p(float32)", ylabel="std of p(float32) / p(BF16)")
    ticks = np.arange(-18, 1, 6)
    axes.set_xticks(ticks, [f"$2^{{{tick}}}$" if tick else "1" for tick in ticks])
    axes.legend(loc="lower right")
