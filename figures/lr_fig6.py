"""Length, reward and rate where length pays, with the triggered schedule and without (lr Fig. 6-10)."""

from matplotlib.figure import Figure

from figures.arms import REWARD, Panel, draw_panels
from simlab.core.results import Results

ARMS = tuple(
    f"length{name}"
    for name in (
        ": no schedule",
        ": BF16",
        ": triggered",
        ": triggered late",
        ", wide: no schedule",
        ", wide: triggered",
    )
)
LENGTH, RATE = Panel("response_length", "response length"), Panel("learning_rate_factor", "part of the rate")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (LENGTH, REWARD, RATE), height=2.6)
