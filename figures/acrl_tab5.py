"""Dense and MoE policies under one dose, with ACRL and without (acrl Tab. 5; hacking Sec. 3.2)."""

from matplotlib.figure import Figure

from figures.arms import MISMATCH, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("no correction", "MoE", "ACRL 0.35", "MoE, ACRL", "BF16 control", "MoE, BF16")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, MISMATCH), height=2.6)
