"""Benchmarks: cost of a sweep, and speed of a training step on a device."""

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, MARKERS, MUTED, new_figure, plain_log
from simlab.core.results import Results

AXES = {
    "runs": "runs, in batches of one size",
    "runs_per_batch": "runs per batch",
    "length": "response length (tokens)",
    "steps": "training steps",
}
STAGES = ("rollout", "score", "updates", "step")
WIDE = 5  # rates further apart get a logarithmic axis


def draw_sweep_cost(results: Results) -> Figure:
    """Draw the seconds of a sweep, a panel per axis, with the fitted exponent."""
    cost, fits = results.table("cost"), results.table("fits").set_index("axis")
    figure, panels = new_figure(2.0, ncols=len(AXES))
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
    figure, (speed, fraction) = new_figure(2.4, ncols=2)
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
