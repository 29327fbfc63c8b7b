"""Reward and log_ppl_abs_diff under corrections (lr Fig. 2, 3), rates and schedules (Fig. 4, 11, 12)."""

from matplotlib.figure import Figure

from figures.arms import draw_arms
from figures.style import PAGE, new_figure, plain_log
from simlab.core.results import Results

CORRECTIONS = ("no correction", "token TIS", "token MIS", "sequence TIS", "sequence MIS", "BF16 control")
RATES = ("no correction", "no correction, halving", "token MIS, halving", "token TIS, halving", "rate / 10")


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 4.4, nrows=2, ncols=2)
    for row, arms in zip(axes, (CORRECTIONS, RATES), strict=True):
        draw_arms(row[0], results, arms, "reward", labels=True)
        draw_arms(row[1], results, arms, "log_ppl_abs_diff")
        row[0].set(ylabel="reward of the sampling policy", ylim=(0, 1))
        row[0].legend(fontsize=6, loc="upper right", ncols=2)
        row[1].set(ylabel="log_ppl_abs_diff", yscale="log")
    plain_log(axes[1, 1].yaxis)
    return figure
