"""Steps until the reward is .05 above its first, DFPO beside its rivals (cancel Tab. 2)."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from figures.arms import SMOOTH, against, draw_against, tables
from figures.style import new_figure
from simlab.core.results import Results

GAIN, CHUNK = 0.05, 10
GSPO = "two_spellings: GSPO"
NAMES = ("GRPO", "GRPO-fix", "DFPO without transform", "DFPO min")
PAIRS = against(GSPO, [GSPO, *(f"two_spellings: {name}" for name in NAMES)])


def draw(results: Results) -> Figure:
    runs, chunks = tables(results)
    merged: Any = chunks.merge(runs[["run", "arm", "start"]], on="run").sort_values(["run", "step"])
    steps = merged.groupby(["arm", "start", "run"])[["step", "reward"]].apply(_steps)
    figure, axis = new_figure(height=2.0)
    label = f"steps to a gain of {GAIN} (all, if never),\nless those of GSPO"
    draw_against(axis, steps.groupby(["arm", "start"]).mean(), PAIRS, label)
    return figure


def _steps(curve: Any) -> float:
    smooth = pd.Series(curve["reward"]).rolling(SMOOTH, min_periods=1).mean()
    there = curve["step"][smooth >= curve["reward"][:2].mean() + GAIN]
    return float(there.min() if len(there) else curve["step"].max()) + CHUNK
