"""Sampled token probabilities under every format: the paper's histogram, for all of them."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, MUTED, PAGE, new_figure
from simlab.core.results import Results

HALF_LEFT = 0.5  # formats that lose more vectors of logits than this are named below, not drawn


def draw(results: Results) -> Figure:
    """Draw one row per format: all octaves on the left, a quarter octave in BF16 steps on the right."""
    histograms: Any = results.table("histograms")
    facts = _facts(results)
    rows = _merge_equal(histograms, [name for name in facts.index if facts.loc[name, "drawn"] >= HALF_LEFT])
    figure, (whole, steps) = new_figure(
        PAGE, 0.42 * len(rows) + 1.1, ncols=2, width_ratios=(3, 2), sharey=True
    )
    for place, (label, name) in enumerate(rows):
        base = len(rows) - 1 - place
        part = histograms[histograms["format"] == name]
        _ridge(whole, part[part["window"] == "octaves"], base, log=True)
        _ridge(steps, part[part["window"] == "steps"], base, log=False)
        whole.text(-14.1, base + 0.12, label, ha="right", fontsize=8, weight="bold")
        fact = facts.loc[name]
        steps.text(215.6, base + 0.3, f"{fact['levels']:,.0f} levels", fontsize=7)
        lost = f"{fact['lost']:.1%} lost" if fact["lost"] >= 0.0005 else "none lost"
        steps.text(215.6, base + 0.02, lost, fontsize=7, color=MUTED)
    whole.set(
        title="All sampled tokens", xlabel="token probability p", xlim=(-14, -3), ylim=(-0.08, len(rows))
    )
    ticks = np.arange(-14, -2, 2)
    whole.set_xticks(ticks, [f"$2^{{{tick}}}$" for tick in ticks])
    steps.set(
        title="A quarter octave around $p = 2^{-9.4}$",
        xlabel="token probability p, in BF16 steps of $2^{-17}$",
        xlim=(181, 215),
    )
    for axes in (whole, steps):
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


def _facts(results: Results) -> Any:
    """Levels in a sample, share of distributions left, probability lost; finest format first."""
    ratios: Any = results.table("ratios")
    sweep: Any = results.table("sweep")
    reading = int(results.manifest["config"]["per_vector_of_formats"])
    chosen = ratios[(ratios["placement"] == "logits-probs") & (ratios["per_vector"] == reading)]
    facts = chosen.groupby("format")[["levels", "drawn"]].mean()
    lost = sweep[
        (sweep["placement"] == "logits-probs")
        & (sweep["rounding"] == "nearest_even")
        & (sweep["temperature"] == 1.0)
        & (sweep["vocabulary"] == 2048)
    ].set_index("format")["lost"]
    return facts.join(lost).round({"lost": 3}).sort_values(["lost", "levels"], ascending=[True, False])


def _merge_equal(histograms: Any, names: list[str]) -> list[tuple[str, str]]:
    """Return (label, format), formats with equal histograms under one label."""
    groups: dict[bytes, list[str]] = {}
    for name in names:
        counts = histograms.loc[histograms["format"] == name, "count"].to_numpy()
        groups.setdefault(counts.tobytes(), []).append(name)
    return [("\n".join(group), group[0]) for group in groups.values()]


def _ridge(axes, part: Any, base: float, log: bool) -> None:
    counts = part.pivot_table(index="left", columns="seed", values="count").to_numpy()
    left = np.unique(part["left"])
    x = np.log2(left) if log else left * 128 * 1024
    height = 0.85 / max(counts.max(), 1)
    low, mean, high = (base + height * f(axis=1) for f in (counts.min, counts.mean, counts.max))
    axes.fill_between(x, base, mean, step="post", color=COLORS[4], linewidth=0)
    axes.fill_between(x, low, high, step="post", color=COLORS[0], alpha=0.7, linewidth=0)
    axes.axhline(base, color=MUTED, linewidth=0.5)
