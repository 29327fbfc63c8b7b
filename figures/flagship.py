"""Reward, mismatch and survival bias of the flagship runs."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, DASHES, MUTED, PAGE, new_figure
from simlab.core.results import Results

SMOOTH = 20
LOW_PROBABILITY = 0.01
LOOKS = {
    "no correction": (COLORS[0], DASHES[0]),
    "TIS": (COLORS[1], DASHES[1]),
    "GSPO": (COLORS[2], DASHES[2]),
    "BF16 control": (COLORS[-1], DASHES[-1]),
}


def draw(results: Results) -> Figure:
    steps: Any = results.table("steps")
    figure, axes = new_figure(PAGE, 2.5, ncols=3)
    rare = _rare(results.table("bins"))
    for arm, look in LOOKS.items():
        _band(axes[0], _curves(steps[steps["arm"] == arm], "reward", SMOOTH), look, arm)
        _band(axes[1], _curves(steps[steps["arm"] == arm], "rms_log_rho", SMOOTH), look)
        _band(axes[2], _curves(rare[rare["arm"] == arm], "mean_rho", 1), look)
    axes[0].set(title="Reward of the sampler", xlabel="step", ylim=(0, 1))
    axes[1].set(title="Mismatch: RMS log $\\rho$", xlabel="step", yscale="log")
    axes[2].axhline(1, color=MUTED, lw=0.6)
    axes[2].set(title="Mean $\\rho$ of rare tokens", xlabel="step", ylim=(0, None))
    figure.legend(loc="outside upper center", ncols=len(LOOKS))
    return figure


def _curves(rows: Any, column: str, smooth: int) -> Any:
    """One smoothed curve per run, [step, run]."""
    curves = rows.pivot(index="step", columns="run", values=column)
    return curves.rolling(smooth, min_periods=1).mean()


def _band(axis, curves: Any, look: tuple[str, Any], label: str | None = None) -> None:
    """Mean over runs, with its standard error."""
    mean, error = curves.mean(axis=1), curves.sem(axis=1).fillna(0.0)
    color, dashes = look
    axis.plot(curves.index, mean, color=color, ls=dashes, label=label)
    axis.fill_between(np.asarray(curves.index), mean - error, mean + error, color=color, alpha=0.2, lw=0)


def _rare(bins: Any) -> Any:
    """Mean rho of rare tokens by run and chunk of steps, each token counted once."""
    rare = bins[bins["high"] <= LOW_PROBABILITY]
    rare = rare.assign(total=rare["mean_rho"].fillna(0.0) * rare["tokens"])
    sums = rare.groupby(["arm", "run", "step"], as_index=False)[["total", "tokens"]].sum()
    return sums.assign(mean_rho=sums["total"] / sums["tokens"].where(sums["tokens"] > 0))
