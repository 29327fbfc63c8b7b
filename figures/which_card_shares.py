"""Where the FP8 mismatch comes from: format, adder and order; bits of the adder; orders alone."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.style import COLORS, MARKERS, MUTED, PAGE, new_figure
from simlab.core.results import Results

WHOLE = ("h100-bf16", "h100-fp8")
LEAST = 1e-4


def draw(results: Results) -> Figure:
    """Exact Shapley shares in h100-bf16/h100-fp8; bits of the adder; orders against that mismatch."""
    figure, (shares, bits, orders) = new_figure(PAGE, 2.7, ncols=3, width_ratios=(1, 1, 0.9))
    _shares(shares, results)
    _bits(bits, results)
    _orders(orders, results)
    return figure


def _shares(axes: Axes, results: Results) -> None:
    rows = results.table("shares").to_dict("records")
    policies, names, seeds = (_values(rows, name) for name in ("policy", "factor", "seed"))
    for row in rows:
        number, turn = names.index(row["factor"]), seeds.index(row["seed"])
        place = policies.index(row["policy"]) + 0.25 * (number - 1) + 0.08 * turn
        share, low, high = (100 * row[name] for name in ("share", "low", "high"))
        label = row["factor"] if (row["policy"], turn) == (policies[0], 0) else None
        axes.plot([place, place], [low, high], "-", color=COLORS[number])
        axes.plot(place, share, MARKERS[number], color=COLORS[number], label=label)
    axes.set_xticks(range(len(policies)), policies)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    axes.set_ylabel("share of mean square log rho, %")
    axes.set_title("what makes it")
    axes.legend(loc="center left")


def _bits(axes: Axes, results: Results) -> None:
    rows = results.table("bits").to_dict("records")
    for number, policy in enumerate(_values(rows, "policy")):
        for train, style in (("h100-bf16", "-"), ("b200-fp8", "--")):
            mine = [row for row in rows if (row["policy"], row["train"]) == (policy, train)]
            bits = _values(mine, "bits")
            mean = [np.mean([row["rms_log_rho"] for row in mine if row["bits"] == count]) for count in bits]
            label = policy if style == "-" else None
            # Without a sum that differs there is nothing to draw on a logarithmic axis.
            shown = np.where(np.array(mean) > 0, mean, np.nan)
            axes.plot(bits, shown, style, color=COLORS[number], marker=MARKERS[number], label=label)
    axes.axvline(13, color=MUTED, linewidth=0.8)
    axes.set_yscale("log")
    axes.set_xlabel("fraction bits\n(against BF16: solid, 25 bits: dashed)")
    axes.set_ylabel("RMS log rho")
    axes.set_title("bits of the adder")
    axes.legend(loc="lower left", fontsize=6, handlelength=1.2)


def _orders(axes: Axes, results: Results) -> None:
    pairs = results.table("pairs").to_dict("records")
    whole = {
        (row["policy"], row["seed"]): row["rms_log_rho"]
        for row in pairs
        if (row["train"], row["infer"]) == WHOLE
    }
    rows = results.table("orders").to_dict("records")
    names, policies = _values(rows, "order")[::-1], _values(rows, "policy")
    for row in rows:
        number = policies.index(row["policy"])
        ratio = max(row["rms_log_rho"] / whole[row["policy"], row["seed"]], LEAST)
        place = names.index(row["order"]) + 0.15 * (1 - number)
        axes.plot(ratio, place, color=COLORS[number], marker=MARKERS[number], linestyle="none")
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names], fontsize=6)
    axes.set_xlabel("part of the FP8 mismatch\n(RMS log rho; leftmost: less)")
    axes.set_title("order alone")


def _values(rows: list[dict], name: str) -> list:
    """The different values of a column, in the order in which they appear."""
    return list(dict.fromkeys(row[name] for row in rows))
