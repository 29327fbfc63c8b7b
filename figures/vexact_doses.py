"""Reward against the mismatch that each kind of dose puts in, and the run without any."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.arms import against, by_start, draw_against, legend_above, short
from figures.style import COLORS, DASHES, MARKERS, MUTED, PAGE, new_figure, plain_log
from simlab.claims import paired_effect
from simlab.core.results import Results

# What the names of a kind's arms hold; the strongest dose of truncation is the campaign's own.
KINDS = {
    "truncated": (" bits, truncated", "long: no correction"),
    "nearest": ("long: FP8",),
    "fixed noise": ("fixed noise",),
    "fresh noise": ("fresh noise",),
}
CONTROL = "long: BF16 control"
ALONE = (
    "long: no correction",
    "long: identical engines",
    "long: copied log-probs",
    "long: on-policy",
    "long: on-policy, BF16",
    CONTROL,
)


def draw(results: Results) -> Figure:
    late, dose = by_start(results, "reward"), by_start(results, "rms_log_rho", early=True)
    figure, axes = new_figure(PAGE, 2.7, ncols=2)
    for look, (label, parts) in enumerate(KINDS.items()):
        style = {"color": COLORS[look], "ls": DASHES[look], "marker": MARKERS[look], "label": label}
        _doses(axes[0], late, dose, parts, style)
    axes[0].axhline(0, color=MUTED, lw=0.8)
    label = f"late reward, less {short(CONTROL)}'s"
    axes[0].set(xlabel="mismatch at the start: RMS log $\\rho$", ylabel=label, xscale="log")
    plain_log(axes[0].xaxis)
    draw_against(axes[1], late, against(CONTROL, ALONE), label)
    legend_above(figure, axes)
    return figure


def _doses(axis: Any, late: Any, dose: Any, parts: tuple[str, ...], style: dict[str, Any]) -> None:
    """Gaps to the control from equal starts, with 95% intervals over starts, by mean dose."""
    present = set(late.index.unique("arm"))
    arms = [arm for arm in present if CONTROL in present and any(part in arm for part in parts)]
    arms.sort(key=lambda arm: dose[arm].mean())
    gaps = {arm: (late[arm] - late[CONTROL]).dropna() for arm in arms}
    seen = [paired_effect(gap, 0.0, gap.index) for gap in gaps.values() if len(gap) > 1]
    if len(seen) == len(arms) > 0:
        reach = [[each.effect - each.low for each in seen], [each.high - each.effect for each in seen]]
        x = [float(np.mean(dose[arm])) for arm in arms]
        axis.errorbar(x, [each.effect for each in seen], yerr=reach, capsize=2, **style)
