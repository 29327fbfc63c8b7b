"""Reward of DFPO, its parts and its rivals on two tasks (cancel Fig. 2), and against group size (Tab. 4)."""

from matplotlib.figure import Figure

from figures.arms import by_run, draw_arms
from figures.style import COLORS, MARKERS, PAGE, new_figure
from simlab.core.results import Results

RIVALS = ("GRPO", "GRPO-fix", "GSPO", "DFPO without transform", "DFPO min")
SIZES = (2, 4, 8, 16)


def draw(results: Results) -> Figure:
    figure, axes = new_figure(PAGE, 2.5, ncols=3)
    for axis, task in zip(axes, ("template", "two_spellings"), strict=False):
        draw_arms(axis, results, [f"{task}: {name}" for name in RIVALS], "reward", labels=True)
        axis.set(ylabel=f"reward, {task.replace('_', ' ')}")
        axis.legend(fontsize=6, loc="lower right")
    _by_size(axes[2], results)
    return figure


def _by_size(axis, results: Results) -> None:
    late = by_run(results, "reward")
    there = set(late.index.get_level_values("arm"))
    for look, name in enumerate(("GSPO", "DFPO min")):
        arms = {g: f"template: {name}" if g == 16 else f"template: {name}, G = {g}" for g in SIZES}
        known = {g: late[arm] for g, arm in arms.items() if arm in there}
        if known:
            axis.errorbar(
                list(known),
                [rewards.mean() for rewards in known.values()],
                yerr=[rewards.sem() for rewards in known.values()],
                color=COLORS[look],
                marker=MARKERS[look],
                capsize=2,
                label=name,
            )
    axis.set(xlabel="group size G", ylabel="reward, last quarter", xscale="log", xticks=SIZES)
    axis.set_xticklabels([str(g) for g in SIZES])
    axis.minorticks_off()
    axis.legend(fontsize=6)
