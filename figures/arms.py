"""Curves of arms from the tables `runs` and `chunks`: means over runs with their standard error."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from figures.style import COLORS, DASHES
from simlab.core.results import Results

SMOOTH = 5


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
        axis.plot(middle.index, middle, color=color, ls=dash, label=_short(arm) if labels else None)
        axis.fill_between(middle.index, middle - error, middle + error, color=color, alpha=0.18, lw=0)
    axis.set(xlabel="step")


def _short(arm: str) -> str:
    return arm.partition(": ")[2] or arm
