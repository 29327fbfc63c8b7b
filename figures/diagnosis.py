"""Mismatch in a user's log over its steps, and by token probability."""

from typing import Any

from matplotlib.figure import Figure

from figures.style import COLORS, PAGE, look, new_figure
from simlab.core.results import Results

MISMATCH = {
    "rms_log_rho": "RMS log $\\rho$",
    "controlled_rms_log_rho": "RMS log $\\rho$ at fixed probability",
    "std_rho": "std of $\\rho$",
    "mean_abs_log_rho": "mean |log $\\rho$| (TRL)",
}
SEQUENCES = {
    "response_length": "response length (tokens)",
    "log_ppl_abs_diff": "mean |sequence log $\\rho$| (nats)",
}
BINS = {"mean_rho_by_pi_train": "mean $\\rho$", "rms_log_rho_by_pi_train": "RMS log $\\rho$ (nats)"}


def draw(results: Results) -> Figure:
    """Draw mismatch over steps, length and log ratio of sequences over steps, profile in probability."""
    steps: Any = results.table("steps")
    figure, (left, middle, right) = new_figure(PAGE, 2.3, ncols=3)
    for axis, columns in ((left, MISMATCH), (middle, SEQUENCES)):
        shown = [name for name in columns if name in steps]
        for number, name in enumerate(shown):
            axis.plot(steps["step"], steps[name], **look(number, marker=".", label=columns[name]))
        axis.set(xlabel="training step", yscale="log")
        if shown:
            axis.legend()
    left.set(ylabel="mismatch (nats; std: pure number)")
    if "bins" in results.table_names:
        bins: Any = results.table("bins")
        names = [f"<{high:g}" for high in bins["high"]]
        for (name, label), color, marker in zip(BINS.items(), COLORS[2:], "so", strict=False):
            right.plot(names, bins[name], color=color, marker=marker, label=label)
        right.set(xlabel="$\\pi_{train}$", ylim=(0, None))
        right.legend()
    else:
        right.set_axis_off()
    return figure
