"""Response length and reward on the recurrence task, one curve per seed."""

import pandas as pd
from matplotlib.figure import Figure

from figures.style import COLORS, DASHES, PAGE, new_figure
from simlab.core.results import Results

SMOOTH = 20
LABELS = {"reward": "reward (fraction of the terms)", "response_length": "response length (tokens)"}


def draw(results: Results) -> Figure:
    """Two panels over the same steps; curves are means of the last 20 steps."""
    steps = results.table("steps")
    figure, axes = new_figure(PAGE, 2.4, ncols=2)
    for look, (seed, rows) in enumerate(steps.groupby("seed")):
        for axis, (column, label) in zip(axes, LABELS.items(), strict=True):
            smooth = pd.Series(rows[column]).rolling(SMOOTH, min_periods=1).mean()
            axis.plot(rows["step"], smooth, color=COLORS[look], ls=DASHES[look], label=f"seed {seed}")
            axis.set(xlabel="step", ylabel=label, ylim=(0, None))
    axes[0].legend(loc="lower right")
    return figure
