"""Curves of arms from the tables `runs` and `chunks`: means over runs with their standard error."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.style import COLORS, COLUMN, DASHES, PAGE, new_figure, plain_log
from simlab.core.results import Results

SMOOTH = 5
NARROW, WIDE = 5, 30  # a logarithmic axis of less is linear; up to the other it has ticks at 1, 2 and 5


def tables(results: Results) -> tuple[Any, Any]:
    """Return `runs` and `chunks`; as Any, because the stubs of pandas widen every operation."""
    return results.table("runs"), results.table("chunks")


def by_run(results: Results, metric: str, early: bool = False) -> Any:
    """Return a metric's mean over the last quarter (or the first tenth) of every run, by arm and run.

    A run that has no chunk in its last quarter, being too short or having diverged, gives its last one.
    """
    runs, chunks = tables(results)
    table = chunks.merge(runs[["run", "arm", "steps"]], on="run")
    last = table.groupby("run")["step"].transform("max")
    late = table["step"] >= np.minimum(0.75 * table["steps"], last)
    kept = table["step"] < 0.1 * table["steps"] if early else late
    return table[kept].groupby(["arm", "run"])[metric].mean()


def draw_arms(axis: Any, results: Results, arms: Sequence[str], metric: str, labels: bool = False) -> None:
    """Draw a metric of each of `arms` that the results hold, over steps, smoothed over 5 chunks."""
    runs, chunks = tables(results)
    for look, arm in enumerate(arms):
        wanted = chunks[chunks["run"].isin(runs["run"][runs["arm"] == arm])]
        if not len(wanted):
            continue
        curves = wanted.pivot(index="step", columns="run", values=metric)
        smooth = curves.rolling(SMOOTH, min_periods=1, center=True).mean()
        middle = smooth.mean(axis=1)
        error = smooth.std(axis=1) / np.sqrt(smooth.shape[1])
        color, dash = COLORS[look % len(COLORS)], DASHES[look % len(DASHES)]
        axis.plot(middle.index, middle, color=color, ls=dash, label=short(arm) if labels else None)
        axis.fill_between(middle.index, middle - error, middle + error, color=color, alpha=0.18, lw=0)
    axis.set(xlabel="step")


def short(arm: str) -> str:
    """Return the name of an arm without its task."""
    return arm.partition(": ")[2] or arm


@dataclass(frozen=True)
class Panel:
    """What a panel shows over steps: a column of `chunks` and its label; logarithmic if `log` and wide."""

    metric: str
    label: str
    log: bool = False
    limits: tuple[float, float] | None = None


REWARD = Panel("reward", "reward of the sampling policy", limits=(0, 1))
MISMATCH = Panel("rms_log_rho", "mismatch: RMS log $\\rho$", log=True)
DISCREPANCY = Panel("discrepancy", "discrepancy d")
ENTROPY = Panel("entropy", "entropy in nats")
NORM = Panel("grad_norm", "gradient norm", log=True)
LPD = Panel("log_ppl_abs_diff", "log_ppl_abs_diff", log=True)


def draw_panels(
    results: Results, arms: Sequence[str], panels: Sequence[Panel], height: float = 2.3
) -> Figure:
    """Return a figure with the curves of `arms`, one panel beside the other, one legend above them."""
    width = COLUMN if len(panels) == 1 else PAGE
    figure, axes = new_figure(width, height, ncols=len(panels), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        draw_arms(axis, results, arms, panel.metric, labels=panel is panels[0])
        axis.set(ylabel=panel.label, **({"ylim": panel.limits} if panel.limits else {}))
        low, high = axis.dataLim.intervaly
        if panel.log and high > NARROW * max(low, 0):
            axis.set_yscale("log")
            if high < WIDE * low:
                plain_log(axis.yaxis)
    figure.legend(loc="outside upper center", ncols=4 if width == PAGE else 2, fontsize=6)
    return figure


def draw_ends(axis: Any, results: Results, arms: Sequence[str], metric: str, early: bool = False) -> None:
    """Draw each run's last quarter (or first tenth) as a dot, and each arm's mean, first arm on top."""
    means = by_run(results, metric, early)
    known = [arm for arm in arms if arm in means.index.get_level_values("arm")]
    for row, arm in enumerate(known):
        axis.plot(means[arm], [-row] * len(means[arm]), "o", color=COLORS[0], ms=3, alpha=0.5, mew=0)
        axis.plot([means[arm].mean()], [-row], "|", color=COLORS[1], ms=11, mew=2)
    axis.set_yticks([-row for row in range(len(known))], [short(arm) for arm in known])


def watched_curves(results: Results, arm: str, metric: str) -> Any:
    """Return what was watched of an arm, one curve per run, [step, run]; empty if it was not."""
    runs, watched = tables(results)[0], results.table("watched")
    mine: Any = watched[watched["run"].isin(runs["run"][runs["arm"] == arm])]
    named = mine.reindex(columns=["step", "run", metric])
    return named.pivot(index="step", columns="run", values=metric).dropna(how="all")
