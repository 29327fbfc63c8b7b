"""Reward, mismatch and survival bias of the flagship runs."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from figures.style import COLORS, DASHES, MUTED, PAGE, new_figure
from simlab.core.results import Results

SMOOTH = 20
LOW_PROBABILITY = 0.01


def draw(results: Results) -> Figure:
    steps, bins = results.table("steps"), results.table("bins")
    figure, axes = new_figure(PAGE, 2.4, ncols=3)
    for look, arm in enumerate(dict.fromkeys(steps["arm"])):
        rows = steps[steps["arm"] == arm]
        _band(axes[0], _by_run(rows, "reward"), str(arm), look)
        _band(axes[1], _by_run(rows, "rms_log_rho"), str(arm), look)
        _survival(axes[2], bins[(bins["arm"] == arm) & (bins["high"] <= LOW_PROBABILITY)], look)
    axes[0].set(xlabel="step", ylabel="reward of the sampling policy", ylim=(0, 1))
    axes[0].legend(loc="lower left")
    axes[1].set(xlabel="step", ylabel="mismatch: RMS log $\\rho$", yscale="log")
    axes[2].axhline(1, color=MUTED, lw=0.8)
    axes[2].set(xlabel="step", ylabel=f"mean $\\rho$ where $\\pi_{{train}} < {LOW_PROBABILITY}$")
    return figure


def _by_run(rows, column: str) -> np.ndarray:
    """One curve per run, [run, step]; the table is written run after run."""
    return np.asarray(rows[column]).reshape(len(set(rows["run"])), -1)


def _band(axis, curves: np.ndarray, label: str, look: int) -> None:
    """Mean over runs of smoothed curves, with their standard error."""
    smooth = np.asarray(pd.DataFrame(curves.T).rolling(SMOOTH, min_periods=1).mean())
    mean, error = smooth.mean(axis=1), smooth.std(axis=1, ddof=1) / np.sqrt(smooth.shape[1])
    steps = np.arange(len(mean))
    axis.plot(steps, mean, color=COLORS[look], ls=DASHES[look], label=label)
    axis.fill_between(steps, mean - error, mean + error, color=COLORS[look], alpha=0.2, lw=0)


def _survival(axis, rare, look: int) -> None:
    """Mean rho of rare tokens over all runs, each token counted once."""
    steps, where = np.unique(rare["step"], return_inverse=True)
    tokens = np.bincount(where, rare["tokens"])
    total = np.bincount(where, np.nan_to_num(rare["mean_rho"] * rare["tokens"]))
    axis.plot(
        steps[tokens > 0], (total / np.maximum(tokens, 1))[tokens > 0], color=COLORS[look], ls=DASHES[look]
    )
