"""FP16 in both engines beside BF16 and the dose (lr Fig. 13)."""

from matplotlib.figure import Figure

from figures.arms import LPD, NORM, REWARD, draw_panels
from simlab.core.results import Results

ARMS = ("long: FP16 twice", "long: BF16 control", "long: no correction")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (REWARD, LPD, NORM))
