"""Precision and range of every number format, as a million numbers measured them."""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure

from figures.style import COLORS, MUTED, PAGE, new_figure
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
    """Left, where each format has how much precision; right, its worst error against the unit roundoff."""
    errors, profile = results.table("errors"), results.table("profile")
    heights = _heights()
    figure, (ranges, bounds) = new_figure(
        PAGE, 3.5, ncols=2, sharey=True, width_ratios=(2.1, 1), gridspec_kw={"wspace": 0.04}
    )
    colors = _draw_ranges(ranges, profile, heights)
    _draw_bounds(bounds, errors, heights)
    _label_rows(ranges, heights)
    bar = figure.colorbar(colors, ax=ranges, location="bottom", aspect=50, pad=0.02, fraction=0.05)
    bar.set_label("largest relative error at this magnitude (white: underflow or overflow)")
    bar.ax.minorticks_off()
    bar.set_ticks([2.0**power for power in range(FINEST, COARSEST + 1, 2)])
    bar.set_ticklabels([_power(power) for power in range(FINEST, COARSEST + 1, 2)])
    bar.outline.set_visible(False)
    return figure


def _heights() -> dict[str, float]:
    """Vertical position of each row, downward, with a gap between groups."""
    heights, position = {}, 0.0
    for group in GROUPS.values():
        for name in group:
            heights[name] = position
            position += 1
        position += GAP
    return heights


def _draw_ranges(axes: Axes, profile: pd.DataFrame, heights: dict[str, float]) -> ScalarMappable:
    """One strip per format: its extent is the range, its color the precision there."""
    steps = 2 * (COARSEST - FINEST)
    colors = ListedColormap(mpl.colormaps["YlGnBu_r"](np.linspace(0.08, 0.94, steps)))
    norm = LogNorm(2.0**FINEST, 2.0**COARSEST)
    # At a relative error of 1 nothing of the number is left.
    kept = profile.query("max_relative_error < 1").sort_values("log2_magnitude").groupby("format")
    for name, height in heights.items():
        strip = kept.get_group(name)
        centers = strip.log2_magnitude.to_numpy()
        width = np.diff(centers).min()
        edges = np.append(centers - width / 2, centers[-1] + width / 2)
        # Within an octave the worst relative error falls as magnitude grows; one color per octave.
        worst = strip.groupby(np.floor(strip.log2_magnitude)).max_relative_error.transform("max")
        band = [height - 0.38, height + 0.38]
        mesh = axes.pcolormesh(edges, band, worst.to_numpy()[None, :], cmap=colors, norm=norm)
        mesh.set_rasterized(True)
    axes.set_title("Range and precision of each format")
    axes.set_xlabel("magnitude of the number")
    axes.set_xticks(range(-24, 21, 8), [_power(power) for power in range(-24, 21, 8)])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    return ScalarMappable(norm, colors)


def _draw_bounds(axes: Axes, errors: pd.DataFrame, heights: dict[str, float]) -> None:
    """The unit roundoff as a bar, the worst and the rms error to nearest even as dots."""
    chosen = (errors.rounding == "nearest_even") & (errors.input == "log_uniform")
    rows = errors[chosen].set_index("format").loc[list(heights)]
    y = np.array(list(heights.values()))
    axes.hlines(y, 2.0**-14, rows.unit_roundoff, color="#e4e4e4", linewidth=0.8, zorder=1)
    axes.plot(rows.rms_error, y, "o", color=COLORS[4], markersize=3.5, label="rms error")
    axes.plot(rows.max_error, y, "o", color=COLORS[0], markersize=5, label="worst error")
    axes.plot(rows.unit_roundoff, y, "|", color=COLORS[1], markersize=11, mew=1.8, label="unit roundoff")
    axes.set_xscale("log", base=2)
    axes.set_xlim(2.0**-14, 2.0**0.3)
    axes.set_xticks([2.0**power for power in range(-12, 1, 4)], [_power(power) for power in range(-12, 1, 4)])
    axes.set_title("Error ≤ unit roundoff")
    axes.set_xlabel("relative error, to nearest even")
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
    axes.legend(loc="upper right", handletextpad=0.2, borderaxespad=0.0)


def _label_rows(axes: Axes, heights: dict[str, float]) -> None:
    axes.set_yticks(list(heights.values()), list(heights))
    axes.set_ylim(max(heights.values()) + 0.7, -0.7)
    axes.tick_params(axis="y", length=0)
    for label, group in GROUPS.items():
        middle = np.mean([heights[name] for name in group])
        axes.annotate(
            label, (0, middle), xycoords=("axes fraction", "data"), xytext=(-53, 0),
            textcoords="offset points", va="center", ha="right", fontsize=7, color=MUTED,
        )  # fmt: skip


def _power(power: int) -> str:
    return "1" if power == 0 else f"$2^{{{power}}}$"
