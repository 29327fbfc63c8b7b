"""Curves of a sweep with matplotlib, for a quick look; the figures of papers are in `figures/`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simlab.core.atomic import write_atomically


def draw_curves(frame: pd.DataFrame, metrics: Sequence[str], by: str, smooth: int) -> Figure:
    """Return a panel per metric: per value of `by` the mean over runs, with a band of one standard error.

    Raises `ValueError` listing the metrics there are.
    """
    if absent := [name for name in metrics if name not in frame]:
        raise ValueError(f"no metric {absent[0]!r}; there are: {', '.join(frame.columns)}")

    def draw(panel: Axes, metric: str) -> None:
        for name, rows in frame.groupby(by, sort=False, dropna=False):
            _band(panel, rows, metric, smooth, str(name))

    return _draw_panels(metrics, draw)


def _band(panel: Axes, rows: pd.DataFrame, metric: str, smooth: int, label: str) -> None:
    table: Any = rows.pivot(index="step", columns="run", values=metric).rolling(smooth, min_periods=1).mean()
    # A run that diverged has no later rows; the others carry the curve on.
    mean, error = table.mean(axis=1), table.sem(axis=1).fillna(0)
    (line,) = panel.plot(table.index, mean, label=label)
    panel.fill_between(table.index, mean - error, mean + error, color=line.get_color(), alpha=0.2, lw=0)


def save_arm_curves(curves: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> Path:
    """Draw mean curves, metric -> arm -> [steps], into a PNG, atomically."""

    def draw(panel: Axes, metric: str) -> None:
        for name, curve in curves[metric].items():
            panel.plot(np.arange(len(curve)), curve, label=name)

    figure = _draw_panels(list(curves), draw)
    return write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=120))


def _draw_panels(metrics: Sequence[str], draw: Callable[[Axes, str], None]) -> Figure:
    """Return a figure with a panel per metric."""
    size = 3.6 * len(metrics), 2.6
    with plt.style.context("tableau-colorblind10"):
        figure, panels = plt.subplots(
            ncols=len(metrics), figsize=size, squeeze=False, constrained_layout=True
        )
        for panel, metric in zip(panels[0], metrics, strict=True):
            draw(panel, metric)
            panel.set(xlabel="step", ylabel=metric)
        panels[0][0].legend(frameon=False, fontsize="small")
        # Closed, so that a notebook shows what is returned and not a second copy.
        plt.close(figure)
    return figure
