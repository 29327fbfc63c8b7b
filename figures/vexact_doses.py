"""Reward against the mismatch that each kind of dose puts in, and the run without any."""

import numpy as np
from matplotlib.figure import Figure

from figures.arms import by_run
from figures.style import COLORS, MARKERS, MUTED, PAGE, new_figure, plain_log
from simlab.core.results import Results

# What the names of a kind's arms hold; the strongest dose of truncation is the campaign's own.
KINDS = {
    "truncated": (" bits, truncated", "no correction"),
    "fixed noise": ("fixed noise",),
    "fresh noise": ("fresh noise",),
}
ALONE = ("no correction", "zero mismatch", "copied log-probs", "on-policy", "on-policy, BF16", "BF16 control")


def draw(results: Results) -> Figure:
    late, early = by_run(results, "reward"), by_run(results, "rms_log_rho", early=True)
    present = list(dict.fromkeys(late.index.get_level_values("arm")))
    figure, axes = new_figure(PAGE, 2.7, ncols=2)
    for look, (label, parts) in enumerate(KINDS.items()):
        names = [arm for arm in present if any(part in arm for part in parts)]
        x = [early[arm].mean() for arm in names]
        y, error = [late[arm].mean() for arm in names], [late[arm].sem() for arm in names]
        axes[0].errorbar(x, y, yerr=error, fmt=MARKERS[look], color=COLORS[look], label=label, capsize=2)
    for arm in ("BF16 control", "zero mismatch"):
        if arm in present:
            axes[0].axhline(
                late[arm].mean(), color=MUTED, lw=0.8, ls="--" if "zero" in arm else "-", label=arm
            )
    axes[0].set(xlabel="mismatch at the start: RMS log $\\rho$", ylabel="reward, last quarter", xscale="log")
    plain_log(axes[0].xaxis)
    axes[0].legend(fontsize=6, loc="lower left")
    names = [arm for arm in ALONE if arm in present]
    rows = np.arange(len(names))[::-1]
    axes[1].errorbar(
        [late[arm].mean() for arm in names], rows, xerr=[late[arm].sem() for arm in names], fmt="o", capsize=2
    )
    axes[1].set(yticks=rows, yticklabels=names, xlabel="reward, last quarter")
    return figure
