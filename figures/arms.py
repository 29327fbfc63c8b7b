"""Curves and ends of arms from the tables `runs` and `chunks`, paired by warm start.

Seeds of a start are averaged, and arms are compared on the starts that all of a figure's arms have. A band is
one standard error over starts, or what is left of it once what the arms share at a step is taken out of each
start (Cousineau 2005, Morey 2008), so bands that part are arms that part. Where there is but one of several
arms it has no band. On logarithmic axes means are geometric, unless there are zeros.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.style import COLORS, COLUMN, DASHES, MUTED, PAGE, new_figure, plain_log
from simlab.claims import paired_effect
from simlab.core.results import Results

SMOOTH = 5
NARROW, WIDE = 5, 100  # a logarithmic axis of less is linear; up to the other it has ticks at 1, 2 and 5
LINE = 100  # what one line of a legend holds across a page, in letters
KEPT = {"no correction": 0, "BF16 control": len(COLORS) - 1}
"""Arms that look the same in every figure."""


def tables(results: Results) -> tuple[Any, Any]:
    """Return `runs` and `chunks`; as Any, because the stubs of pandas widen every operation."""
    return results.table("runs"), results.table("chunks")


def by_start(results: Results, metric: str, early: bool = False, table: str = "chunks") -> Any:
    """Return a metric's mean over the last quarter (or the first tenth) of the runs, by arm and start.

    A run that has no chunk in its last quarter, being too short or having diverged, gives its last one.
    Empty if nothing is in `table`, which in the smoke mode lacks what is watched.
    """
    runs: Any = results.table("runs")[["run", "arm", "start", "steps"]]
    rows: Any = results.table(table).reindex(columns=["run", "step", metric]).merge(runs, on="run")
    last = rows.groupby("run")["step"].transform("max")
    late = rows["step"] >= np.minimum(0.75 * rows["steps"], last)
    kept = rows["step"] < 0.1 * rows["steps"] if early else late
    return _over_seeds(rows[kept], metric)


def best_by_start(results: Results, metric: str) -> Any:
    """Return a metric's largest mean over 5 chunks of the runs, by arm and start."""
    runs, chunks = tables(results)
    table = chunks.merge(runs[["run", "arm", "start"]], on="run").sort_values(["run", "step"])
    smooth = table.groupby("run")[metric].rolling(SMOOTH, min_periods=1).mean()
    best = table.assign(best=smooth.to_numpy()).groupby(["arm", "start", "run"], as_index=False)["best"].max()
    return _over_seeds(best, "best")


def _over_seeds(table: Any, metric: str) -> Any:
    each = table.groupby(["arm", "start", "run"])[metric].mean()
    return each.groupby(["arm", "start"]).mean()


def curves(results: Results, arms: Sequence[str], metric: str, table: str = "chunks") -> dict[str, Any]:
    """Return curves [step, start] of those of `arms` that the results hold, over the starts that all have.

    `chunks` are smoothed over 5 of them; `watched` may lack the metric for an arm, which then has no curve.
    """
    runs, rows = tables(results)[0], results.table(table).reindex(columns=["run", "step", metric])
    merged: Any = rows.dropna().merge(runs[["run", "arm", "start"]], on="run")
    found: dict[str, Any] = {}
    for arm in arms:
        mine = merged[merged["arm"] == arm]
        if len(mine):
            curve = mine.pivot_table(index="step", columns="start", values=metric)
            smoothed = curve.rolling(SMOOTH, min_periods=1, center=True).mean()
            found[arm] = smoothed if table == "chunks" else curve
    shared = set.intersection(*(set(curve.columns) for curve in found.values())) if found else set()
    return {arm: curve[sorted(shared)] if shared else curve for arm, curve in found.items()}


def bands(found: Mapping[str, Any], log: bool) -> dict[str, Any]:
    """Return the columns `middle`, `low` and `high` over steps of every arm."""
    if not found:
        return {}
    whole: Any = pd.concat(found, axis=1, names=["arm", "start"])
    geometric = log and (whole.min(axis=None) > 0)
    if geometric:
        whole = np.log(whole)
    by_step = whole.T.groupby(level="start").mean().T
    arms = (whole.T.groupby(level="arm").count() > 0).sum()
    common = by_step.sub(by_step.mean(axis=1), axis=0)
    factor = np.sqrt(arms / (arms - 1).where(arms > 1))
    drawn = {}
    for arm in found:
        middle, error = whole[arm].mean(axis=1), whole[arm].sem(axis=1)
        if len(found) > 1:
            error = np.fmin(error, (whole[arm] - common).sem(axis=1) * factor).where(arms > 1)
        error = error.fillna(0)
        band = pd.DataFrame({"middle": middle, "low": middle - error, "high": middle + error}).dropna()
        drawn[arm] = np.exp(band) if geometric else band
    return drawn


def short(arm: str) -> str:
    """Return the name of an arm without its task: `x` of `task: x`, `kind: x` of `task, kind: x`."""
    task, _, name = arm.partition(": ")
    kind = task.partition(", ")[2]
    return (f"{kind}: {name}" if kind else name) if name else arm


def looks(arms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return colour and dashes of each arm."""
    kept = {arm: KEPT[short(arm)] for arm in arms if short(arm) in KEPT}
    free = iter([look for look in range(len(COLORS)) if look not in kept.values()] * len(arms))
    numbers = {arm: kept[arm] if arm in kept else next(free) for arm in arms}
    return {arm: {"color": COLORS[look], "ls": DASHES[look]} for arm, look in numbers.items()}


@dataclass(frozen=True)
class Panel:
    """What a panel shows over steps: a column of a table and its label; logarithmic if `log` and wide."""

    metric: str
    label: str
    log: bool = False
    limits: tuple[float, float | None] | None = None


REWARD = Panel("reward", "reward of the sampler", limits=(0, None))
MISMATCH = Panel("rms_log_rho", "mismatch: RMS log $\\rho$")
SPREAD = Panel("std_rho", "mismatch: std $\\rho$")
DISCREPANCY = Panel("discrepancy", "discrepancy d")
ENTROPY = Panel("entropy", "entropy in nats")
NORM = Panel("grad_norm", "gradient norm", log=True)
LPD = Panel("log_ppl_abs_diff", "log_ppl_abs_diff")
RATE = Panel("learning_rate_factor", "learning rate / first")
EXTENDED = (LPD, SPREAD, NORM)


def draw_panel(axis: Any, found: Mapping[str, Any], panel: Panel, styles: Mapping[str, Any]) -> None:
    """Draw curves [step, start] of arms as their means and bands, with `styles` from `looks`."""
    means = np.concatenate([[np.nan], *(curve.mean(axis=1) for curve in found.values())])
    low, high = np.nanmin(means, where=means > 0, initial=np.inf), np.nanmax(means, initial=0)
    log = panel.log and high > NARROW * low
    for arm, band in bands(found, log).items():
        axis.plot(band.index, band["middle"], label=short(arm), **styles[arm])
        axis.fill_between(band.index, band["low"], band["high"], color=styles[arm]["color"], alpha=0.18, lw=0)
    axis.set(xlabel="step", ylabel=panel.label)
    if log:
        axis.set_yscale("log")
        if high < WIDE * low:
            plain_log(axis.yaxis)
    if panel.limits:
        axis.set_ylim(*panel.limits)


def draw_panels(
    results: Results,
    arms: Sequence[str],
    panels: Sequence[Panel],
    height: float = 2.3,
    table: str = "chunks",
) -> Figure:
    """Return a figure with the curves of `arms`, one panel beside the other, one legend above them."""
    width = COLUMN if len(panels) == 1 else PAGE
    figure, axes = new_figure(width, height, ncols=len(panels), squeeze=False)
    found = [curves(results, arms, panel.metric, table) for panel in panels]
    shown = [arm for arm in arms if any(arm in each for each in found)]
    for axis, each, panel in zip(axes[0], found, panels, strict=True):
        draw_panel(axis, each, panel, looks(shown))
    legend_above(figure, axes[0])
    return figure


def legend_above(figure: Figure, axes: Sequence[Any]) -> None:
    """Put one legend above all panels, in as few lines as hold it, each label once."""
    handles = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if not handles:
        return
    letters = sum(len(label) + 8 for label in handles)
    lines = -(-letters // round(LINE * figure.get_figwidth() / PAGE))
    columns = -(-len(handles) // lines)
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=columns, fontsize=6.5)


def draw_against(axis: Any, ends: Any, pairs: Mapping[str, str], label: str) -> None:
    """Draw arms against others from equal starts, first arm on top; the means of the arms stand beside.

    ends: a number by arm and start. pairs: each arm with the one that is subtracted; itself to list it.
    Dots are starts, bars 95% intervals over them.
    """
    known = {arm: other for arm, other in pairs.items() if {arm, other} <= set(ends.index.unique("arm"))}
    axis.set(xlabel=label)
    if not known:
        return
    beside: Any = {"xycoords": axis.get_yaxis_transform(), "va": "center", "fontsize": 7}
    axis.annotate("mean", (1.02, 0.8), color=MUTED, **beside)
    for row, (arm, other) in enumerate(known.items()):
        axis.annotate(f"{ends[arm].mean():.3g}", (1.02, -row), **beside)
        if arm != other:
            _draw_gaps(axis, (ends[arm] - ends[other]).dropna(), -row)
    axis.axvline(0, color=MUTED, lw=0.8)
    axis.set_yticks([-row for row in range(len(known))], [short(arm) for arm in known])
    axis.set(ylim=(-len(known) + 0.4, 0.6))
    axis.xaxis.set_major_locator(MaxNLocator(4))


def _draw_gaps(axis: Any, gaps: Any, height: float) -> None:
    if len(gaps) > 1:
        seen = paired_effect(gaps, 0.0, gaps.index)
        axis.plot([seen.low, seen.high], [height] * 2, color=COLORS[5], lw=3.5, alpha=0.5)
        axis.plot([seen.effect], [height], "|", color=COLORS[1], ms=10, mew=2)
    axis.plot(gaps, [height] * len(gaps), "o", color=COLORS[0], ms=3, alpha=0.7, mew=0)


def against(reference: str, arms: Sequence[str]) -> dict[str, str]:
    """Return each of `arms` with the same reference."""
    return dict.fromkeys(arms, reference)


def mark_best(axis: Any, found: Mapping[str, Any], arm: str) -> None:
    """Draw a vertical line where the mean reward of an arm, curves in `found`, is largest."""
    if arm not in found:
        return
    step = found[arm].mean(axis=1).idxmax()
    axis.axvline(step, color=MUTED, ls=":", lw=1)
    text: Any = {"ha": "center", "va": "bottom", "fontsize": 6, "color": MUTED}
    axis.annotate("reward is best", (step, 1.01), xycoords=axis.get_xaxis_transform(), **text)
