"""Signatures of a user's log in small panels; each title describes a healthy run."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import COLORS, PAGE, look, new_figure
from simlab.core.results import Results

MISMATCH = {
    "rms_log_rho": "RMS log $\\rho$ (nats)",
    "controlled_rms_log_rho": "the same at fixed probability (nats)",
    "std_rho": "std of $\\rho$",
    "mean_abs_log_rho": "mean |log $\\rho$| (nats)",
}
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


def draw(results: Results) -> Figure:
    """Draw the mismatch over the steps, the signatures, and the probabilities of the causes."""
    figure, rows = new_figure(PAGE, 6.2, nrows=4, ncols=3)
    axes = [axis for row in rows for axis in row]
    _draw_steps(axes[0], results)
    _draw_causes(axes[1], results)
    panels: Any = results.table("panels") if "panels" in results.table_names else None
    for axis, (name, words) in zip(axes[2:], PANELS.items(), strict=False):
        part = None if panels is None else panels[panels["panel"] == name]
        if part is None or not len(part):
            axis.set_axis_off()
            continue
        title, xlabel, ylabel = words
        marker = "." if name in DOTS else "o"
        line = "none" if name in DOTS else "-"
        axis.plot(part["x"], part["y"], color=COLORS[0], marker=marker, markersize=2, linestyle=line)
        axis.set(xlabel=xlabel, ylabel=ylabel, title=title)
        if name in ("index", "from_end"):
            axis.set(xscale="log", ylim=(0, None))
        if name == "probability":
            axis.set(yscale="log")
    for axis in axes[2 + len(PANELS) :]:
        axis.set_axis_off()
    return figure


def _draw_steps(axis: Axes, results: Results) -> None:
    steps: Any = results.table("steps")
    for number, name in enumerate(name for name in MISMATCH if name in steps):
        axis.plot(steps["step"], steps[name], **look(number, marker=".", label=MISMATCH[name]))
    axis.set(xlabel="training step", ylabel="mismatch", yscale="log", title="Over the steps\nhealthy: flat")
    axis.figure.legend(loc="lower right", title="Over the steps", ncols=2)


def _draw_causes(axis: Axes, results: Results) -> None:
    causes: Any = results.table("causes")
    best = causes.sort_values("probability", ascending=False).head(5)[::-1]
    axis.barh(best["cause"], best["probability"], color=COLORS[1])
    axis.set(xlim=(0, 1), xlabel="probability", title="Causes\nhealthy: rounding")
