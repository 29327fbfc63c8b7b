"""One style for all figures: color-blind-safe, legible in print at column width."""

import io
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypedDict, cast

import matplotlib as mpl
import numpy as np

mpl.use("agg")  # figures are files and need no display

import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from PIL import Image

from simlab.core.results import Results

PAGE = 7.0
"""Width of every figure in inches: letters have one size wherever figures are shown at one width."""

# Okabe and Ito's palette without its yellow, which vanishes on white paper.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Line styles follow the colors, so that curves stay apart in black and white.
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MUTED = "#6b6b6b"
LETTERS_PER_LINE = 100  # of a legend across a page
LETTERS_OF_TITLE = 140  # of the title of a legend across a page

RC: Any = {
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 180,
    "svg.hashsalt": "simlab",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=COLORS),
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    # Bars of intervals end where the interval does.
    "lines.solid_capstyle": "butt",
    "lines.markersize": 4,
}


Dashes = str | tuple[float, tuple[float, ...]]


class LineStyle(TypedDict):
    """Style of a numbered curve, as arguments of `Axes.plot`."""

    color: str
    ls: Dashes
    marker: str


class ArmStyle(TypedDict):
    """Style of an arm, as arguments of `Axes.plot`."""

    color: str
    ls: Dashes
    label: str


def new_figure(height: float = 2.4, width: float = PAGE, **subplots: object) -> tuple[Figure, np.ndarray]:
    """Return `plt.subplots(...)` with at least one dimension of axes; sizes in inches."""
    figure, axes = plt.subplots(figsize=(width, height), **cast("dict[str, Any]", subplots))
    return figure, np.atleast_1d(axes)


def plain_log(axis: Axis) -> None:
    """Label a logarithmic `axes.xaxis` or `axes.yaxis` of few decades with 1, 2 and 5 in plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def legend_above(figure: Figure, axes: Iterable[Axes], title: str | None = None) -> None:
    """Put one legend above all panels, in as few lines as hold it, each label once."""
    handles = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if not handles:
        return
    letters = sum(len(label) + 8 for label in handles)
    pages = figure.get_figwidth() / PAGE
    lines = -(-letters // round(LETTERS_PER_LINE * pages))
    columns = -(-len(handles) // lines)
    where: Any = {"loc": "outside upper center", "ncols": columns, "fontsize": 6.5}
    title = textwrap.fill(title, round(LETTERS_OF_TITLE * pages)) if title else None
    legend = figure.legend(handles.values(), handles, title=title, title_fontsize=6.5, **where)
    legend.get_title().set_multialignment("center")


def line_style(number: int) -> LineStyle:
    """Return color, dashes and marker of the curve `number`."""
    return {"color": COLORS[number], "ls": DASHES[number], "marker": MARKERS[number]}


def render(draw: Callable[[Results], Figure], results: Results, folder: Path, name: str) -> list[Path]:
    """Draw in the style above, write `name.png` and `name.svg` into `folder`, return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    with mpl.rc_context(RC):
        figure = draw(results)
        # A date in the file would make equal figures differ.
        figure.savefig(svg, metadata={"Date": None})
        pixels = io.BytesIO()
        figure.savefig(pixels, format="png")
        plt.close(figure)
    # A palette takes a quarter of the bytes. This method keeps the colors of small marks, which median cut
    # loses; k-means then restores those of large areas.
    colors = {"colors": 192, "method": Image.Quantize.MAXCOVERAGE, "kmeans": 3, "dither": Image.Dither.NONE}
    image = Image.open(pixels).convert("RGB").quantize(**colors)
    image.save(png, optimize=True, dpi=(RC["savefig.dpi"],) * 2)
    return [png, svg]
