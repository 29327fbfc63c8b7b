"""Dense and MoE policies under one dose, with ACRL and without (acrl Tab. 5; hacking Sec. 3.2)."""

from matplotlib.figure import Figure

from figures.arms import MISMATCH, REWARD, draw_panels
from simlab.core.results import Results

NAMES = ("no correction", "ACRL 0.35", "BF16 control")
ARMS = tuple(f"{model}: {name}" for name in NAMES for model in ("long", "long, MoE"))


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, MISMATCH), height=2.6)
