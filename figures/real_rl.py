"""RL with rollouts of vLLM beside its emulated twin: reward, mismatch, and the distance of each sync."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import COLORS, MUTED, PAGE, new_figure, plain_log
from simlab.core.results import Results

SMOOTH = 10
TITLES = {"none": "no correction", "TIS": "TIS", "R2": "R2 replay", "R3": "R3 replay"}
ROWS = (
    ("reward", "reward", "linear"),
    ("rms_log_rho", "mismatch:\nRMS log $\\rho$, nats", "log"),
    ("sync_apart", "probe after sync,\nnats off float32", "log"),
)


def draw(results: Results) -> Figure:
    """A column per arm: vLLM as a line, the range of the twin's seeds as a band."""
    steps: Any = results.table("steps")
    real = results.manifest["config"]["real"]
    arms = list(steps["arm"].unique())
    figure, axes = new_figure(
        PAGE, 4.6, nrows=len(ROWS), ncols=len(arms), sharex=True, sharey="row", squeeze=False
    )
    for column, arm in enumerate(arms):
        rows = steps[steps["arm"] == arm]
        for axis, (number, _, scale) in zip(axes[:, column], ROWS, strict=True):
            _panel(axis, rows, number, real)
            axis.set_yscale(scale)
            if scale == "log":
                plain_log(axis.yaxis)
        axes[0][column].set_title(TITLES[arm])
        axes[-1][column].set_xlabel("step")
    for axis, (_, label, _) in zip(axes[:, 0], ROWS, strict=True):
        axis.set_ylabel(label)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def _panel(axis: Axes, rows: Any, number: str, real: str) -> None:
    curves = rows.pivot(index="step", columns=["sampler", "seed"], values=number).dropna(axis=1)
    smooth = curves.rolling(SMOOTH, min_periods=1).mean()
    measured = smooth.columns.get_level_values("sampler") == real
    ours, twins = smooth.loc[:, measured], smooth.loc[:, ~measured]
    axis.plot(ours.index, ours.mean(axis=1), color=COLORS[1], label=f"rollouts of {real}")
    if twins.shape[1]:
        label = f"emulated twin, {twins.shape[1]} seeds"
        low, high = twins.min(axis=1), twins.max(axis=1)
        axis.fill_between(twins.index, low, high, color=MUTED, alpha=0.35, lw=0, label=label)
