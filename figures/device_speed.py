"""Runs side by side: how many steps a second they make, and how near that is to the device's roofline."""

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, MARKERS, PAGE, new_figure, plain_log
from simlab.core.results import Results

# Rates further apart than this are told by their ratios.
WIDE = 5
STAGES = ("rollout", "score", "updates", "step")


def draw(results: Results) -> Figure:
    """Run-steps per second against width; share of the roofline by stage."""
    rows = results.table("widths").query("status == 'measured'")
    figure, (speed, share) = new_figure(PAGE, 2.4, ncols=2)
    step = rows.query("stage == 'step'")
    speed.plot(step["width"], step["run_steps_per_s"], marker=MARKERS[0], color=COLORS[0])
    speed.set_ylabel("run-steps per second")
    rates = np.asarray(step["run_steps_per_s"])
    if rates.max() > WIDE * rates.min():
        speed.set_yscale("log")
        plain_log(speed.yaxis)
    else:
        speed.set_ylim(0, 1.1 * rates.max())
    for stage, color, marker in zip(STAGES, COLORS, MARKERS, strict=False):
        part = rows.query("stage == @stage")
        share.plot(part["width"], part["of_roofline"], marker=marker, color=color, label=stage)
    share.set(ylabel="share of the roofline", ylim=(0, None))
    figure.legend(loc="outside upper right", ncols=len(STAGES))
    for panel in (speed, share):
        widths = np.asarray(step["width"])
        panel.set_xscale("log")
        panel.set_xticks(widths, [f"{width:g}" for width in widths])
        panel.minorticks_off()
        panel.set_xlabel("runs side by side")
    return figure
