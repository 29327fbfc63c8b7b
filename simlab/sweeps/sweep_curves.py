"""Curves of a sweep with matplotlib, for a quick look; the figures of papers are in `figures/`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from simlab.core.atomic import write_atomically

STYLE = "tableau-colorblind10"
PANEL = (3.6, 2.6)


def draw_curves(frame: pd.DataFrame, metrics: Sequence[str], by: str, smooth: int) -> Figure:
    """Return a panel per metric: per value of `by` the mean over runs, with a band of one standard error.

    Raises `ValueError` listing the metrics there are.
    """
    absent = [name for name in metrics if name not in frame]
    if absent:
        raise ValueError(f"no metric {absent[0]!r}; there are: {', '.join(frame.columns)}")
    with plt.style.context(STYLE):
        figure, panels = _panels(len(metrics))
        for panel, metric in zip(panels, metrics, strict=True):
            for name, rows in frame.groupby(by, sort=False, dropna=False):
                _band(panel, rows, metric, smooth, str(name))
            panel.set(xlabel="step", ylabel=metric)
        panels[0].legend(frameon=False, fontsize="small")
        # Closed, so that a notebook shows what is returned and not a second copy.
        plt.close(figure)
    return figure


def _band(panel: Any, rows: pd.DataFrame, metric: str, smooth: int, label: str) -> None:
    table: Any = rows.pivot(index="step", columns="run", values=metric).rolling(smooth, min_periods=1).mean()
    steps, runs = np.asarray(table.index), table.to_numpy(float)
    # A run that diverged has no later rows; the others carry the curve on.
    count = np.maximum(np.isfinite(runs).sum(axis=1), 1)
    mean = np.nansum(runs, axis=1) / count
    squares = np.nansum((runs - mean[:, None]) ** 2, axis=1)
    error = np.sqrt(squares / np.maximum(count - 1, 1) / count)
    (line,) = panel.plot(steps, mean, label=label)
    panel.fill_between(steps, mean - error, mean + error, color=line.get_color(), alpha=0.2, lw=0)


def save_arm_curves(curves: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> Path:
    """Draw mean curves, metric -> arm -> [steps], into a PNG, atomically."""
    with plt.style.context(STYLE):
        figure, panels = _panels(len(curves))
        for panel, (metric, arms) in zip(panels, curves.items(), strict=True):
            for name, curve in arms.items():
                panel.plot(np.arange(len(curve)), curve, label=name)
            panel.set(xlabel="step", ylabel=metric)
        panels[0].legend(frameon=False, fontsize="small")
        plt.close(figure)
    return write_atomically(path, lambda file: figure.savefig(file, format="png", dpi=120))


def _panels(count: int) -> tuple[Figure, Sequence]:
    width, height = PANEL
    figure, panels = plt.subplots(
        ncols=count, figsize=(width * count, height), squeeze=False, constrained_layout=True
    )
    return figure, panels[0]
