"""Reward of DFPO and GSPO against the size of the group (cancel Tab. 4)."""

from matplotlib.figure import Figure

from figures.arms import by_run
from figures.style import COLORS, MARKERS, new_figure
from simlab.core.results import Results

SIZES = (2, 4, 8, 16)


def draw(results: Results) -> Figure:
    late = by_run(results, "reward")
    figure, axis = new_figure()
    for look, name in enumerate(("GSPO", "DFPO min")):
        arms = {g: f"template: {name}" + ("" if g == 16 else f", G = {g}") for g in SIZES}
        known = [g for g, arm in arms.items() if arm in late.index.get_level_values("arm")]
        rewards = [late[arms[g]] for g in known]
        means, errors = [each.mean() for each in rewards], [each.sem() for each in rewards]
        style = {"color": COLORS[look], "marker": MARKERS[look], "capsize": 2}
        axis.errorbar(known, means, yerr=errors, label=name, **style)
    axis.set(xlabel="group size G", ylabel="reward, last quarter", xscale="log")
    axis.set_xticks(SIZES, [str(g) for g in SIZES])
    axis.minorticks_off()
    axis.legend()
    return figure
