"""How vocabulary size and temperature change what a format does to a softmax."""

from typing import Any

from matplotlib.figure import Figure

from figures.style import COLORS, DASHES, MARKERS, PAGE, new_figure
from simlab.core.results import Results

LOSSY = ("e5m2", "e4m3fnuz", "e4m3fn", "e3m4", "fp16")
ROUNDINGS = {
    "nearest_even": "nearest",
    "toward_zero": "toward zero",
    "stochastic": "stochastic",
}


def draw(results: Results) -> Figure:
    """Draw probability rounded to zero, and the BF16 spread, against vocabulary size."""
    sweep: Any = results.table("sweep")
    sweep = sweep[sweep["placement"] == "logits-probs"]
    figure, (lost, spread, mean) = new_figure(PAGE, 2.7, ncols=3)
    nearest = sweep[(sweep["rounding"] == "nearest_even") & (sweep["temperature"] == 1.0)]
    for i, name in enumerate(LOSSY):
        part = nearest[nearest["format"] == name]
        style = {"color": COLORS[i], "linestyle": DASHES[i], "marker": MARKERS[i], "markersize": 3}
        lost.plot(part["vocabulary"], part["lost"], label=name, **style)
    bf16 = sweep[sweep["format"] == "bf16"]
    for i, temperature in enumerate(sorted(bf16["temperature"].unique())):
        part = bf16[(bf16["temperature"] == temperature) & (bf16["rounding"] == "nearest_even")]
        style = {"color": COLORS[i], "linestyle": DASHES[i], "marker": MARKERS[i], "markersize": 3}
        spread.plot(part["vocabulary"], part["std"], label=f"T = {temperature:g}", **style)
    for i, (rounding, label) in enumerate(ROUNDINGS.items()):
        part = bf16[(bf16["temperature"] == 1.0) & (bf16["rounding"] == rounding)]
        style = {"color": COLORS[i], "linestyle": DASHES[i], "marker": MARKERS[i], "markersize": 3}
        mean.plot(part["vocabulary"], part["mean"] - 1, label=label, **style)
    lost.set(title="Probability rounded to zero", ylabel="share of p(float32)")
    spread.set(title="BF16 spread", ylabel="std of p(float32) / p(BF16)", ylim=(0, None))
    mean.set(title="BF16 bias", ylabel="mean of the ratio, less 1")
    for axes in (lost, spread, mean):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("vocabulary size V")
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3, columnspacing=1, handlelength=1.6
        )
    return figure
