"""Survival: the share of runs whose reward has not yet fallen below 0.8 of its best, by dose."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.arms import SMOOTH, looks, tables
from figures.style import PAGE, new_figure
from simlab.core.results import Results

KEPT_PART = 0.8
CONTROL = "long: BF16 control"
KINDS = {
    "truncated": {
        "long: no correction": "2 bits",
        "long: 3 bits, truncated": "3 bits",
        "long: 4 bits, truncated": "4 bits",
    },
    "nearest": {"long: FP8": "1 bit", "long: FP8, 3 bits": "3 bits"},
    **{
        f"{kind} noise": {f"long: {kind} noise {scale}": f"scale {scale}" for scale in (1.0, 0.3, 0.1)}
        for kind in ("fixed", "fresh")
    },
    "other arms": {
        "long: identical engines": "identical engines",
        "long: copied log-probs": "copied log-probs",
        "long: on-policy": "on-policy",
        "long: on-policy, BF16": "on-policy, BF16",
    },
}


def draw(results: Results) -> Figure:
    runs, chunks = tables(results)
    rewards = chunks.merge(runs[["run", "arm"]], on="run").sort_values(["run", "step"])
    figure, axes = new_figure(PAGE, 3.0, ncols=len(KINDS), sharey=True)
    for axis, (kind, arms) in zip(axes, KINDS.items(), strict=True):
        _panel(axis, rewards, {**arms, CONTROL: "BF16"})
        axis.set_title(kind)
        axis.set(xlabel="step", ylim=(0, 1.03))
        if axis.lines:
            axis.legend(fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, -0.26))
    axes[0].set_ylabel("share of runs without collapse")
    return figure


def _panel(axis: Any, rewards: Any, arms: Mapping[str, str]) -> None:
    styles = looks(list(arms))
    for arm, label in arms.items():
        mine = rewards[rewards["arm"] == arm]
        if len(mine):
            table = mine.pivot_table(index="step", columns="run", values="reward")
            axis.step(
                table.index, _alive(table), where="post", label=f"{label} ({table.shape[1]})", **styles[arm]
            )


def _alive(table: Any) -> np.ndarray:
    """Return the share of runs [step] that have stayed above `KEPT_PART` of their best so far."""
    smooth = table.rolling(SMOOTH, min_periods=1).mean()
    fallen = (smooth < KEPT_PART * smooth.cummax()).cummax()
    return 1 - fallen.mean(axis=1).to_numpy()
