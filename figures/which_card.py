"""Mismatch of every pair of cards, on every policy."""

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from figures.style import PAGE, new_figure
from simlab.core.results import Results


def draw(results: Results) -> Figure:
    """Heat maps of RMS log rho, averaged over seeds: the trainer's card down, the sampler's across."""
    rows = results.table("pairs").to_dict("records")
    policies, cards = (list(dict.fromkeys(row[name] for row in rows)) for name in ("policy", "train"))
    maps = np.zeros((len(policies), len(cards), len(cards)))
    for row in rows:
        seeds = sum(other["policy"] == row["policy"] for other in rows) / len(cards) ** 2
        place = policies.index(row["policy"]), cards.index(row["train"]), cards.index(row["infer"])
        maps[place] += row["rms_log_rho"] / seeds
    least = maps[maps > 0].min()
    colors = ScalarMappable(LogNorm(least, maps.max()), "cividis")
    width = min(PAGE, 1.6 + 1.9 * len(policies))
    figure, panels = new_figure(width, 2.9, ncols=len(policies), sharey=True, squeeze=False)
    for axes, policy, values in zip(panels[0], policies, maps, strict=True):
        axes.imshow(np.where(values > 0, values, np.nan), norm=colors.norm, cmap=colors.cmap)
        for (row, column), value in np.ndenumerate(values):
            dark = 0 < value < maps.max() ** 0.6 * least**0.4
            color = "white" if dark else "black"
            axes.text(column, row, _short(value), ha="center", va="center", fontsize=4, color=color)
        axes.set_xticks(range(len(cards)), cards, rotation=60, ha="right", rotation_mode="anchor", fontsize=5)
        axes.set_yticks(range(len(cards)), cards, fontsize=5)
        axes.set_title(policy)
        axes.set_xlabel("sampler")
        axes.grid(visible=False)
    panels[0][0].set_ylabel("trainer")
    figure.colorbar(colors, ax=panels[0], label="RMS log rho", shrink=0.8)
    return figure


def _short(value: float) -> str:
    """Two digits without a leading zero; 0 where the two agree to the bit."""
    if value == 0:
        return "0"
    return f"{value:.0e}".replace("e-0", "e-") if value < 0.01 else f"{value:.2f}".removeprefix("0")
