"""Reward and steps where two spellings are right, DFPO beside its rivals (cancel Tab. 1, 2)."""

from matplotlib.figure import Figure

from figures.arms import draw_arms, draw_ends
from figures.style import PAGE, new_figure
from simlab.core.results import Results

ARMS = tuple(
    f"two_spellings: {name}" for name in ("GRPO", "GRPO-fix", "GSPO", "DFPO without transform", "DFPO min")
)


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 2.2, ncols=2)
    draw_arms(axes[0], results, ARMS, "reward", labels=True)
    axes[0].set(ylabel="reward")
    axes[0].legend(fontsize=6, loc="lower right")
    draw_ends(axes[1], results, ARMS, "reward")
    axes[1].set(xlabel="reward, last quarter")
    return figure
