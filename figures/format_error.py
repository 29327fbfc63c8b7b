"""Precision and range of every number format, measured on a million numbers."""

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure

from figures.style import COLORS, MUTED, new_figure
from simlab.core.results import Results

# Rows from the top, in groups by storage; fp32 is the input itself.
GROUPS = {
    "19 bits": ("tf32",),
    "16 bits": ("fp16", "bf16"),
    "8 bits": ("int8", "e3m4", "e4m3fn", "e4m3", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0"),
    "6 bits": ("e2m3", "e3m2"),
    "4 bits": ("int4", "e2m1"),
}
GAP = 0.45
FINEST, COARSEST = -12, 0


def draw(results: Results) -> Figure:
    """Draw the precision of each format by magnitude, and its maximum error against the unit roundoff."""
    heights, y = {}, 0.0
    for names in GROUPS.values():
        heights |= {name: y + i for i, name in enumerate(names)}
        y += len(names) + GAP
    size: Any = {"width_ratios": (2.1, 1), "gridspec_kw": {"wspace": 0.04}}
    figure, (ranges, bounds) = new_figure(3.5, ncols=2, sharey=True, **size)
    colors = _draw_ranges(ranges, results.table("profile"), heights)
    _draw_bounds(bounds, results.table("errors"), heights)
    ranges.set_yticks(list(heights.values()), list(heights))
    ranges.set_ylim(max(heights.values()) + 0.7, -0.7)
    ranges.tick_params(axis="y", length=0)
    left: Any = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
    for label, names in GROUPS.items():
        middle = np.mean([heights[name] for name in names])
        ranges.annotate(label, (0, middle), (-53, 0), ha="right", fontsize=7, color=MUTED, **left)
    bar = figure.colorbar(colors, ax=ranges, location="bottom", aspect=50, pad=0.02, fraction=0.05)
    bar.set_label("maximum relative error at this magnitude (white: underflow or overflow)")
    bar.ax.minorticks_off()
    bar.set_ticks([2.0**power for power in range(FINEST, COARSEST + 1, 2)])
    bar.set_ticklabels([_power(power) for power in range(FINEST, COARSEST + 1, 2)])
    bar.outline.set_visible(False)
    return figure


def _draw_ranges(axes: Any, profile: Any, heights: dict[str, float]) -> ScalarMappable:
    """Draw one strip per format: its extent is the range, its color the precision there."""
    steps = 2 * (COARSEST - FINEST)
    colors = ListedColormap(mpl.colormaps["YlGnBu_r"](np.linspace(0.08, 0.94, steps)))
    norm = LogNorm(2.0**FINEST, 2.0**COARSEST)
    # At a relative error of 1 nothing of the number is left.
    errors = profile.query("max_relative_error < 1").sort_values("log2_magnitude").groupby("format")
    for name, height in heights.items():
        strip = errors.get_group(name)
        centers = strip.log2_magnitude.to_numpy()
        width = np.diff(centers).min()
        edges = np.append(centers - width / 2, centers[-1] + width / 2)
        # Within an octave the maximum relative error falls as magnitude grows; one color per octave.
        largest = strip.groupby(np.floor(strip.log2_magnitude)).max_relative_error.transform("max")
        band = [height - 0.38, height + 0.38]
        mesh = axes.pcolormesh(edges, band, largest.to_numpy()[None, :], cmap=colors, norm=norm)
        mesh.set_rasterized(True)
    axes.set(title="Range and precision of each format", xlabel="magnitude of the number")
    axes.set_xticks(range(-24, 21, 8), [_power(power) for power in range(-24, 21, 8)])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    return ScalarMappable(norm, colors)


def _draw_bounds(axes: Any, errors: Any, heights: dict[str, float]) -> None:
    """Draw the unit roundoff as a bar, the maximum and RMS error of round to nearest even as dots."""
    chosen = (errors.rounding == "nearest_even") & (errors.input == "log_uniform")
    rows = errors[chosen].set_index("format").loc[list(heights)]
    y = np.array(list(heights.values()))
    axes.hlines(y, 2.0**-14, rows.unit_roundoff, color="#e4e4e4", linewidth=0.8, zorder=1)
    axes.plot(rows.rms_error, y, "o", color=COLORS[4], markersize=3.5, label="RMS error")
    axes.plot(rows.max_error, y, "o", color=COLORS[0], markersize=5, label="maximum error")
    axes.plot(rows.unit_roundoff, y, "|", color=COLORS[1], markersize=11, mew=1.8, label="unit roundoff")
    axes.set_xscale("log", base=2)
    axes.set(xlim=(2.0**-14, 2.0**0.3), title="Error ≤ unit roundoff")
    axes.set_xticks([2.0**power for power in range(-12, 1, 4)], [_power(power) for power in range(-12, 1, 4)])
    axes.set_xlabel("relative error (nearest even)")
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
    axes.legend(loc="upper right", handletextpad=0.2, borderaxespad=0.0)


def _power(power: int) -> str:
    return "1" if power == 0 else f"$2^{{{power}}}$"
