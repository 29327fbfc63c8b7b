"""What leaves its level first: change points of each run without correction (hacking Fig. 14)."""

from typing import Any

from matplotlib.figure import Figure

from figures.arms import tables
from figures.style import COLORS, new_figure
from simlab.core.results import Results

ARM = "long: no correction"
CURVES = {
    "rms_log_rho": "RMS log $\\rho$",
    "log_ppl_abs_diff": "log_ppl_abs_diff",
    "entropy": "entropy",
    "grad_norm": "gradient norm",
    "reward": "reward",
}


def draw(results: Results) -> Figure:
    runs, changes = tables(results)[0], results.table("changes")
    mine: Any = changes[changes["run"].isin(runs["run"][runs["arm"] == ARM])]
    figure, axis = new_figure()
    for row, metric in enumerate(CURVES):
        found = mine[mine["metric"] == metric]
        sure = found["p_value"] < 0.05
        axis.plot(found["step"][sure], [-row] * sure.sum(), "o", color=COLORS[0], alpha=0.6, mew=0)
        axis.plot(found["step"][~sure], [-row] * (~sure).sum(), "o", color=COLORS[0], mfc="none")
        axis.plot([found["step"].mean()], [-row], "|", color=COLORS[1], ms=12, mew=2)
    axis.set_yticks([-row for row in range(len(CURVES))], list(CURVES.values()))
    axis.set(xlabel="step of the change\n(hollow: p > .05; bar: mean)")
    return figure
