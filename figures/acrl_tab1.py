"""Best and last reward under nearest FP8, less that of the BF16 run (acrl Tab. 1)."""

from matplotlib.figure import Figure

from figures.arms import against, best_by_start, by_start, draw_against
from figures.style import PAGE, new_figure
from simlab.core.results import Results

BF16 = "long: BF16 control"
PAIRS = against(BF16, (BF16, "long: FP8", "long: FP8, token TIS", "long: FP8, token MIS", "long: FP8, ACRL"))


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 1.9, ncols=2, sharey=True)
    draw_against(axes[0], best_by_start(results, "reward"), PAIRS, "best reward of 50 steps, less BF16's")
    draw_against(axes[1], by_start(results, "reward"), PAIRS, "reward, last quarter, less BF16's")
    return figure
