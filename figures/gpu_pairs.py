"""Mismatch between the tensor cores of GPUs: all pairs, and what causes it."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from figures.style import COLORS, MARKERS, MUTED, PAGE, new_figure
from simlab.core.results import Results

PAIR = ("h100-bf16", "h100-fp8")
LEAST = 1e-4


def draw_matrix(results: Results) -> Figure:
    """Draw RMS log rho, averaged over seeds: the trainer's card down, the sampler's across."""
    rows = results.table("pairs").to_dict("records")
    policies, cards = _values(rows, "policy"), _values(rows, "train")
    maps = np.zeros((len(policies), len(cards), len(cards)))
    for row in rows:
        seeds = sum(other["policy"] == row["policy"] for other in rows) / len(cards) ** 2
        cell = policies.index(row["policy"]), cards.index(row["train"]), cards.index(row["infer"])
        maps[cell] += row["rms_log_rho"] / seeds
    least = maps[maps > 0].min()
    colors = ScalarMappable(LogNorm(least, maps.max()), "cividis")
    width = min(PAGE, 1.6 + 1.9 * len(policies))
    figure, panels = new_figure(width, 2.9, ncols=len(policies), sharey=True, squeeze=False)
    for axes, policy, values in zip(panels[0], policies, maps, strict=True):
        axes.imshow(np.where(values > 0, values, np.nan), norm=colors.norm, cmap=colors.cmap)
        for (row, column), value in np.ndenumerate(values):
            dark = 0 < value < maps.max() ** 0.6 * least**0.4
            color = "white" if dark else "black"
            axes.text(column, row, _format(value), ha="center", va="center", fontsize=4, color=color)
        axes.set_xticks(range(len(cards)), cards, rotation=60, ha="right", rotation_mode="anchor", fontsize=5)
        axes.set_yticks(range(len(cards)), cards, fontsize=5)
        axes.set_title(policy)
        axes.set_xlabel("sampler")
        axes.grid(visible=False)
    panels[0][0].set_ylabel("trainer")
    figure.colorbar(colors, ax=panels[0], label="RMS log rho", shrink=0.8)
    return figure


def _format(value: float) -> str:
    """Return two digits; 0 where the two agree to the bit."""
    if value == 0:
        return "0"
    return f"{value:.0e}".replace("e-0", "e-") if value < 0.01 else f"{value:.2f}".removeprefix("0")


def draw_causes(results: Results) -> Figure:
    """Draw exact Shapley shares in h100-bf16/h100-fp8; bits of the adder; orders against that mismatch."""
    figure, (shares, bits, orders) = new_figure(PAGE, 2.7, ncols=3, width_ratios=(1, 1, 0.9))
    _draw_shares(shares, results)
    _draw_bits(bits, results)
    _draw_orders(orders, results)
    return figure


def _draw_shares(axes: Axes, results: Results) -> None:
    rows = results.table("shares").to_dict("records")
    policies, factors, seeds = (_values(rows, name) for name in ("policy", "factor", "seed"))
    for row in rows:
        number, turn = factors.index(row["factor"]), seeds.index(row["seed"])
        x = policies.index(row["policy"]) + 0.25 * (number - 1) + 0.08 * turn
        share, low, high = (100 * row[name] for name in ("share", "low", "high"))
        label = row["factor"] if (row["policy"], turn) == (policies[0], 0) else None
        axes.plot([x, x], [low, high], "-", color=COLORS[number])
        axes.plot(x, share, MARKERS[number], color=COLORS[number], label=label)
    axes.set_xticks(range(len(policies)), policies)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.set_ylabel("share of mean square log rho, %")
    axes.set_title("what makes it")
    axes.legend(loc="center left")


def _draw_bits(axes: Axes, results: Results) -> None:
    table: Any = results.table("bits")
    for number, policy in enumerate(table["policy"].unique()):
        for train, style in (("h100-bf16", "-"), ("b200-fp8", "--")):
            rows = table[(table["policy"] == policy) & (table["train"] == train)]
            mean = rows.groupby("bits", sort=False)["rms_log_rho"].mean()
            label = policy if style == "-" else None
            # Equal sums have no mismatch to draw on a logarithmic axis.
            points: Any = {"color": COLORS[number], "marker": MARKERS[number], "ls": style}
            axes.plot(mean.index, mean.where(mean > 0), label=label, **points)
    axes.axvline(13, color=MUTED, linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xlabel("fraction bits\n(against BF16: solid, 25 bits: dashed)")
    axes.set_ylabel("RMS log rho")
    axes.set_title("bits of the adder")
    axes.legend(loc="lower left", fontsize=6, handlelength=1.2)


def _draw_orders(axes: Axes, results: Results) -> None:
    pairs: Any = results.table("pairs")
    pairs = pairs[(pairs["train"] == PAIR[0]) & (pairs["infer"] == PAIR[1])]
    reference = pairs.set_index(["policy", "seed"])["rms_log_rho"].to_dict()
    rows = results.table("orders").to_dict("records")
    names, policies = _values(rows, "order")[::-1], _values(rows, "policy")
    for row in rows:
        number = policies.index(row["policy"])
        ratio = max(row["rms_log_rho"] / reference[row["policy"], row["seed"]], LEAST)
        y = names.index(row["order"]) + 0.15 * (1 - number)
        axes.plot(ratio, y, MARKERS[number], color=COLORS[number])
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names], fontsize=6)
    axes.set_xlabel("part of the FP8 mismatch\n(RMS log rho; leftmost: less)")
    axes.set_title("order alone")


def _values(rows: list[dict], name: str) -> list:
    """Return the distinct values of a column, in the order in which they appear."""
    return list(dict.fromkeys(row[name] for row in rows))
