"""Reward, entropy and mismatch with and without correction (hacking Fig. 2)."""

from matplotlib.figure import Figure

from figures.arms import draw_arms
from figures.style import PAGE, new_figure
from simlab.core.results import Results

ARMS = ("no correction", "token TIS", "GSPO", "BF16 control")


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 2.3, ncols=3)
    draw_arms(axes[0], results, ARMS, "reward", labels=True)
    draw_arms(axes[1], results, ARMS, "entropy")
    draw_arms(axes[2], results, ARMS, "rms_log_rho")
    axes[0].set(ylabel="reward of the sampling policy", ylim=(0, 1))
    axes[0].legend(loc="upper right", fontsize=6)
    axes[1].set(ylabel="entropy in nats")
    axes[2].set(ylabel="mismatch: RMS log $\\rho$", yscale="log")
    return figure
