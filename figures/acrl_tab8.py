"""Discrepancy of a BF16 run, were its rollouts in FP8, along the run (acrl Tab. 8)."""

from matplotlib.figure import Figure

from figures.arms import Panel, draw_panels
from simlab.core.results import Results

PANEL = Panel("discrepancy_fp8", "discrepancy d under FP8", limits=(0, None))


def draw(results: Results) -> Figure:
    return draw_panels(results, ("long: BF16 control",), (PANEL,), table="watched")
