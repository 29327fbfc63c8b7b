"""Signatures of a user's log in small panels.

Each title describes a healthy run, and is red where a signature of the panel is outside the range
of logs without a fault. Gray lines show the healthy place.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import COLORS, LineStyle, line_style, new_figure
from simlab.core.results import Results
from simlab.diagnosis.classifier import MISSING, as_row, load_classifier

MISMATCH = {"rms_log_rho": "all tokens", "controlled_rms_log_rho": "at fixed probability"}
# Panel of the table `panels` -> title that describes a healthy run, x axis, y axis.
PANELS: dict[str, tuple[str, str, str]] = {
    "log_rho": ("Log ratio\nhealthy: symmetric", "log $\\rho$ (nats)", "tokens (fraction)"),
    "probability": ("By probability\nhealthy: falls toward 1", "$\\pi_{infer}$", "RMS log $\\rho$ (nats)"),
    "index": ("By token index\nhealthy: flat", "token index", "mismatch (relative)"),
    "from_end": ("Before the end\nhealthy: flat", "tokens to the end", "mismatch (relative)"),
    "sequence": ("By row\nhealthy: one band", "row of the log", "mismatch (relative)"),
    "id": ("By token id\nhealthy: dots on 0", "id, by mean", "signed mismatch (relative)"),
    "shift": ("After a shift\nhealthy: least at 0", "shift (tokens)", "mean |log $\\rho$| (nats)"),
    "factor": (
        "Ratio of log-probs\nhealthy: peak at 1",
        "logp$_{infer}$ / logp$_{train}$",
        "tokens (fraction)",
    ),
}
DOTS = ("sequence", "id")
HEALTHY_X = {"log_rho": 0.0, "shift": 0.0, "factor": 1.0}
HEALTHY_Y = {"id": 0.0}
SIGNS: dict[str, tuple[str, ...]] = {
    "steps": ("growth", "step_fit"),
    "log_rho": ("skew", "bias", "nats_below", "nats_above", "certain"),
    "probability": ("rms_above_0.9", "rms_above_0.99"),
    "index": ("index_jump", "index_trend", "index_block", "first_token"),
    "from_end": ("last_token", "before_last", "last_is_0"),
    "sequence": ("row_stride", "row_block", "row_spread"),
    "id": ("id_offset", "id_range"),
    "shift": ("shift_gain",),
    "factor": ("log_factor", "base_2", "base_10"),
}
"""Panel -> signatures; those outside the range of logs without a fault color its title."""
MARGIN = 0.1
"""Distance from that range, in units of the signature (mostly logs), from which on a title is red."""
RED = "#b30000"


def draw(results: Results) -> Figure:
    """Draw the mismatch over the steps, the signatures, and the probabilities of the causes."""
    figure, rows = new_figure(6.2, nrows=4, ncols=3)
    axes = [axis for row in rows for axis in row]
    unusual = _find_unusual(results)
    _draw_causes(axes[0], results)
    _draw_steps(axes[1], results, "steps" in unusual)
    panels: Any = results.table("panels") if "panels" in results.table_names else None
    for axis, name in zip(axes[2:], PANELS, strict=False):
        part = None if panels is None else panels[panels["panel"] == name]
        if part is None or not len(part):
            axis.set_axis_off()
        else:
            _draw_panel(axis, name, part, name in unusual)
    for axis in axes[2 + len(PANELS) :]:
        axis.set_axis_off()
    axes[-1].text(0, 0.5, "red title: outside the range of\nlogs without a fault", color=RED)
    return figure


def _find_unusual(results: Results) -> set[str]:
    """Return the panels with a signature outside the 2% to 98% range of logs without a fault."""
    if "signatures" not in results.table_names:
        return set()
    table: Any = results.table("signatures")
    model = load_classifier()
    row = as_row(dict(zip(table["signature"], table["value"], strict=True)), model.names)
    is_outside = (row < model.faultless_low - MARGIN) | (row > model.faultless_high + MARGIN)
    outside = set(model.names[(row > MISSING) & is_outside].tolist())
    return {panel for panel, names in SIGNS.items() if outside.intersection(names)}


def _set_title(axis: Axes, title: str, is_unusual: bool) -> None:
    axis.set_title(title, color=RED if is_unusual else "black")


def _draw_panel(axis: Axes, name: str, part: Any, is_unusual: bool) -> None:
    title, xlabel, ylabel = PANELS[name]
    if name in HEALTHY_X:
        axis.axvline(HEALTHY_X[name], color="0.6")
    if name in HEALTHY_Y:
        axis.axhline(HEALTHY_Y[name], color="0.6")
    if name in ("index", "from_end", "sequence"):
        axis.axhline(float(part["y"].median()), color="0.6")
    dots, line = ("." if name in DOTS else "o"), ("none" if name in DOTS else "-")
    axis.plot(part["x"], part["y"], color=COLORS[0], marker=dots, markersize=2, linestyle=line)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    _set_title(axis, title, is_unusual)
    if name in ("index", "from_end"):
        axis.set(xscale="log", ylim=(0, None))
    if name in ("shift", "sequence"):
        axis.set(ylim=(0, None))
    if name in ("probability", "log_rho"):
        axis.set(yscale="log")


def _draw_steps(axis: Axes, results: Results, is_unusual: bool) -> None:
    steps: Any = results.table("steps")
    for number, name in enumerate(name for name in MISMATCH if name in steps):
        style: LineStyle = {**line_style(number), "marker": "."}
        axis.plot(steps["step"], steps[name], label=MISMATCH[name], **style)
    axis.set(xlabel="training step", ylabel="RMS log $\\rho$ (nats)", ylim=(0, None))
    _set_title(axis, "Over the steps\nhealthy: flat", is_unusual)
    if axis.lines:
        axis.legend(fontsize="x-small")


def _draw_causes(axis: Axes, results: Results) -> None:
    causes: Any = results.table("causes")
    best = causes.sort_values("probability", ascending=False).head(4)[::-1]
    axis.barh(best["cause"], best["probability"], color=COLORS[1])
    axis.set(xlim=(0, 1), xlabel="probability")
    _set_title(axis, "Causes\nhealthy: rounding", str(best["cause"].iloc[-1]) != "rounding")
