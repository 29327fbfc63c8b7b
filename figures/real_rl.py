"""RL under vLLM and under its emulated twin: reward, mismatch and router flips by step."""

from typing import Any

from matplotlib.figure import Figure

from figures.style import COLORS, DASHES, PAGE, new_figure
from simlab.core.results import Results

PANELS = {
    "reward": "reward",
    "rms_log_rho": "RMS log rho, nats",
    "router_flips": "fraction of tokens rerouted",
}
SMOOTHED = 10  # steps


def draw(results: Results) -> Figure:
    """Three panels; vLLM solid, its twin dashed; one color per replay."""
    steps: Any = results.table("steps")
    figure, axes = new_figure(PAGE, 2.5, ncols=3)
    for number, (replay, rows) in enumerate(steps.groupby("replay", sort=False)):
        for sampler, arm in rows.groupby("sampler", sort=False):
            style = DASHES[0] if arm.real.iloc[0] else DASHES[1]
            for axis, column in zip(axes, PANELS, strict=True):
                values = arm.sort_values("step")[column].rolling(SMOOTHED, min_periods=1).mean()
                axis.plot(values.to_numpy(), style, color=COLORS[number], label=f"{sampler}, replay {replay}")
    for axis, label in zip(axes, PANELS.values(), strict=True):
        axis.set(xlabel="step", ylabel=label)
    axes[0].legend(loc="lower right", fontsize=6)
    return figure
