"""Last reward under the truncated dose less that of the BF16 run, and how far it fell (acrl Tab. 2)."""

from matplotlib.figure import Figure

from figures.arms import against, best_by_start, by_start, draw_against
from figures.style import PAGE, new_figure
from simlab.core.results import Results

BF16 = "long: BF16 control"
PAIRS = against(
    BF16, (BF16, "long: no correction", "long: token TIS at 5", "long: sequence MIS", "long: ACRL 0.35")
)


def draw(results: Results) -> Figure:
    last = by_start(results, "reward")
    figure, axes = new_figure(PAGE, 1.9, ncols=2, sharey=True)
    draw_against(axes[0], last, PAIRS, "reward, last quarter, less BF16's")
    fall = last - best_by_start(results, "reward")
    draw_against(axes[1], fall, PAIRS, "reward, last quarter less best, less BF16's")
    return figure
