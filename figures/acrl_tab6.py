"""Reward on held-out prompts under FP8 and BF16 inference, by training (acrl Tab. 6)."""

from matplotlib.figure import Figure

from figures.arms import against, by_start, draw_against
from figures.style import PAGE, new_figure
from simlab.core.results import Results

BF16 = "long: BF16 control"
PAIRS = against(BF16, (BF16, "long: FP8, token TIS", "long: FP8, token MIS", "long: FP8, ACRL"))
SAMPLERS = {"held_out_fp8": "FP8", "held_out_bf16": "BF16"}


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 1.7, ncols=2, sharey=True)
    for axis, (metric, sampler) in zip(axes, SAMPLERS.items(), strict=True):
        label = f"held-out reward under {sampler}, less BF16 training's"
        draw_against(axis, by_start(results, metric, table="watched"), PAIRS, label)
    return figure
