"""Reward of DFPO, its parts and its rivals on the template task (cancel Fig. 2)."""

from dataclasses import replace

from matplotlib.figure import Figure

from figures.arms import REWARD, Panel, draw_panels
from simlab.core.results import Results

ARMS = tuple(
    f"template: {name}" for name in ("GRPO", "GRPO-fix", "GSPO", "DFPO without transform", "DFPO min")
)
JITTER = Panel("reward_jitter", "jitter of the reward")


def draw(results: Results) -> Figure:
    return draw_panels(results, ARMS, (replace(REWARD, limits=None), JITTER))
