"""Clusters: how many uncertain tokens have another's probability to the bit, by engine (hacking Fig. 3b)."""

from matplotlib.figure import Figure

from figures.arms import Panel, curves, draw_panel, legend_above, looks
from figures.style import new_figure
from simlab.core.results import Results

ARM = "long: no correction"
SIDES = {"shared_values": "$\\pi_{infer}$", "shared_values_train": "$\\pi_{train}$"}
SHARE = Panel("", "share with another's probability", limits=(0, 1))


def draw(results: Results) -> Figure:
    watched = {label: curves(results, (ARM,), side, "watched") for side, label in SIDES.items()}
    found = {label: seen[ARM] for label, seen in watched.items() if ARM in seen}
    figure, axis = new_figure()
    # One by one: the point is the rise of each, not what little parts them.
    for label, curve in found.items():
        draw_panel(axis, {label: curve}, SHARE, looks(list(SIDES.values())))
    legend_above(figure, [axis])
    return figure
