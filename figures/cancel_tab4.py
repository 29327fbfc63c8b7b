"""Gain of DFPO over GSPO against the size of the group (cancel Tab. 4)."""

from matplotlib.figure import Figure

from figures.arms import by_start, draw_against
from figures.style import new_figure
from simlab.core.results import Results

SIZES = {2: ", G = 2", 4: ", G = 4", 8: ", G = 8", 16: ""}
PAIRS = {f"template: DFPO min{size}": f"template: GSPO{size}" for size in SIZES.values()}


def draw(results: Results) -> Figure:
    figure, axis = new_figure(height=1.7)
    draw_against(axis, by_start(results, "reward"), PAIRS, "reward, last quarter,\nDFPO min less GSPO")
    axis.set_yticks([-row for row in range(len(SIZES))], [f"G = {size}" for size in SIZES])
    return figure
