"""Mismatch in training runs: by token probability, by kind of noise, by site; change points and collapse."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from figures.kinds import Panel, arm_styles, draw_forest, draw_panel
from figures.series import SMOOTH, curves, first_tenth, join_runs, mean_within, pool_tokens, read_labels
from figures.style import COLORS, MARKERS, MUTED, PAGE, legend_above, look, new_figure, plain_log
from simlab.core.results import Results
from simlab.studies import paired_effect

NONE = "chain: no correction"
CONTROL = "chain: BF16 control"
ENGINES = {"shared_values": "$\\pi_{infer}$", "shared_values_train": "$\\pi_{train}$"}
SHARED_VALUES = Panel("", "fraction of uncertain tokens", limits=(0, 1))
BINS = {"< 0.01": (0.0, 0.01), "0.01 to 0.1": (0.01, 0.1), "0.5 to 0.9": (0.5, 0.9), "> 0.9": (0.9, 1.0)}
MEAN_RATIO = Panel("mean_rho", "mean $\\rho$ by $\\pi_{train}$", reference=1)
ROUNDED = {"chain: FP8": "nearest FP8", NONE: "truncation to 2 bits"}
METRICS = {
    "rms_log_rho": "RMS log $\\rho$",
    "log_ppl_abs_diff": "|sequence log $\\rho$|",
    "entropy": "entropy",
    "grad_norm": "gradient norm",
    "reward": "reward",
}
NOISE_KINDS = {
    "truncation": "Truncation",
    "round to nearest": "To nearest",
    "fixed noise": "Fixed noise",
    "fresh noise": "Fresh noise",
}
"""The title of each value of the column `noise_kind`."""
WITHOUT_MISMATCH = {
    f"chain: {name}": name for name in ("identical engines", "bypass mode", "on-policy", "on-policy, BF16")
}
COLLAPSED = 0.8  # of the best reward so far
REFERENCES = (NONE, "chain, MoE: no correction")
FLAGSHIP = {"no correction": 0, "TIS": 1, "GSPO": 2, "BF16 control": -1}
RARE = 0.01


def draw_shared_values(results: Results) -> Figure:
    """Draw the fraction of uncertain tokens whose probability another token has, by engine."""
    figure, axis = new_figure()
    styles = arm_styles(list(ENGINES.values()))
    for column, label in ENGINES.items():
        # One by one, each with its own band: the subject is the shared rise, not the difference.
        for curve in curves(results, (NONE,), column, "diagnostics").values():
            draw_panel(axis, {label: curve}, SHARED_VALUES, styles)
    legend_above(figure, [axis])
    return figure


def draw_by_probability(results: Results) -> Figure:
    """Draw RMS log rho by bin of the first and the last quarter, and mean rho over steps."""
    rows = join_runs(results, "bins", ("arm", "initial_policy"))
    rows = rows[(rows["arm"] == NONE) & (rows["tokens"] > 0)]
    squares, last = rows.assign(square=rows["rms_log_rho"] ** 2), rows["step"].max()
    periods = {"first": squares["step"] <= last / 4, "last": squares["step"] >= 0.75 * last}
    figure, (spread, drift) = new_figure(PAGE, 2.6, ncols=2)
    for number, (label, period) in enumerate(periods.items()):
        rms = np.sqrt(pool_tokens(squares[period], "square", ("high", "initial_policy")))
        _draw_bins(spread, rms, 0, **look(number, label=f"{label} quarter"))
    spread.set(ylabel="RMS log $\\rho$ (nats)", ylim=(0, None))
    found = {}
    for label, (low, high) in BINS.items():
        inside = rows[(rows["low"] >= low - 1e-6) & (rows["high"] <= high + 1e-6)]
        if len(inside):
            curve = pool_tokens(inside, "mean_rho", ("step", "initial_policy")).unstack("initial_policy")
            found[label] = curve.rolling(SMOOTH, min_periods=1, center=True).mean()
    draw_panel(drift, found, MEAN_RATIO, arm_styles(list(BINS)))
    for axis in (spread, drift):
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize=6.5)
    return figure


def draw_ratio_by_probability(results: Results) -> Figure:
    """Draw mean rho by bin in the last quarter."""
    rows = join_runs(results, "bins", ("arm", "initial_policy", "steps"))
    late = rows[(rows["step"] >= 0.75 * rows["steps"]) & (rows["tokens"] > 0)]
    figure, axis = new_figure()
    for number, (arm, label) in enumerate(ROUNDED.items()):
        ratio = pool_tokens(late[late["arm"] == arm], "mean_rho", ("high", "initial_policy"))
        _draw_bins(axis, ratio, 0.1 * number, **look(number, label=label) | {"ls": "none"})
    axis.axhline(1, color=MUTED, lw=0.8)
    axis.set(ylabel="mean $\\rho$ (last quarter)")
    legend_above(figure, [axis])
    return figure


def _draw_bins(axis: Any, values: Any, offset: float, **style: Any) -> None:
    """Draw means and standard errors over initial policies, by bin of pi_train."""
    summary = values.groupby("high").agg(["mean", "sem"]).fillna(0)
    x = np.arange(len(summary))
    axis.errorbar(x + offset, summary["mean"], summary["sem"], capsize=2, **style)
    axis.set_xticks(x, [f"{high:g}" for high in summary.index])
    axis.set_xlabel("upper bound of $\\pi_{train}$")


def draw_change_points(results: Results) -> Figure:
    """Draw the step at which each metric of each run without correction leaves its level."""
    rows = join_runs(results, "changes", ("arm",))
    figure, axis = new_figure()
    for row, metric in enumerate(METRICS):
        found = rows[(rows["arm"] == NONE) & (rows["metric"] == metric)]
        significant = found["p_value"] < 0.05
        for chosen, style in ((significant, {"alpha": 0.6, "mew": 0}), (~significant, {"mfc": "none"})):
            axis.plot(found["step"][chosen], [-row] * chosen.sum(), "o", color=COLORS[0], **style)
        axis.plot([found["step"].mean()], [-row], "|", color=COLORS[1], ms=12, mew=2)
    axis.set_yticks([-row for row in range(len(METRICS))], list(METRICS.values()))
    axis.set(xlabel="training step of the change\n(hollow: p > 0.05; tick: mean)")
    return figure


def draw_noise_kinds(results: Results) -> Figure:
    """Draw final reward minus BF16 against the mismatch that each kind of noise injects, and without any."""
    late, level = mean_within(results, "reward"), mean_within(results, "rms_log_rho", period=first_tenth)
    figure, axes = new_figure(PAGE, 2.7, ncols=2)
    for number, kind in enumerate(NOISE_KINDS):
        arms = _select_noise(results, kind)
        _draw_levels(axes[0], late, level, list(arms), look(number, label=kind))
    axes[0].axhline(0, color=MUTED, lw=0.8)
    label = "final reward minus BF16 control"
    axes[0].set(xlabel="initial RMS log $\\rho$ (nats)", ylabel=label, xscale="log")
    plain_log(axes[0].xaxis)
    pairs = dict.fromkeys((NONE, *WITHOUT_MISMATCH, CONTROL), CONTROL)
    draw_forest(axes[1], late, pairs, label, read_labels(results))
    legend_above(figure, axes)
    return figure


def _select_noise(results: Results, kind: str) -> dict[str, str]:
    """Return the arms that differ from no correction in their noise alone, with their levels in words."""
    runs: Any = results.table("runs")
    if "noise_kind" not in runs:
        return {}
    plain = (runs["objective"] == "grpo") & (runs["old_log_probs"] == "train") & (runs["minibatches"] == 4)
    chosen = runs[plain & (runs["noise_kind"] == kind) & (runs["arm"] != CONTROL)]
    levels = dict(zip(chosen["arm"], chosen["noise_level"], strict=True))
    if kind in ("fixed noise", "fresh noise"):
        return {arm: f"scale {levels[arm]}" for arm in sorted(levels, key=lambda arm: -levels[arm])}
    words = {arm: f"{level:g} bit{'' if level == 1 else 's'}" for arm, level in levels.items()}
    return {arm: words[arm] for arm in sorted(words, key=lambda arm: levels[arm])}


def _draw_levels(axis: Any, late: Any, level: Any, arms: Sequence[str], style: Mapping[str, Any]) -> None:
    """Draw differences from the control, with 95% intervals over initial policies, by mean level."""
    present = set(late.index.unique("arm"))
    arms = [arm for arm in arms if {CONTROL, arm} <= present]
    arms.sort(key=lambda arm: level[arm].mean())
    differences = [(late[arm] - late[CONTROL]).dropna() for arm in arms]
    found = [paired_effect(each, 0.0, each.index) for each in differences if len(each) > 1]
    if len(found) == len(arms) > 0:
        reach = [[each.effect - each.low for each in found], [each.high - each.effect for each in found]]
        x = [float(np.mean(level[arm])) for arm in arms]
        axis.errorbar(x, [each.effect for each in found], yerr=reach, capsize=2, **style)


def draw_survival(results: Results) -> Figure:
    """Draw the fraction of runs whose reward has stayed above 0.8 of its best, by kind and level of noise."""
    rewards = join_runs(results, "chunks", ("arm",))
    groups = {title: _select_noise(results, kind) for kind, title in NOISE_KINDS.items()}
    groups["Other arms"] = WITHOUT_MISMATCH
    figure, axes = new_figure(PAGE, 3.0, ncols=len(groups), sharey=True)
    for axis, (kind, levels) in zip(axes, groups.items(), strict=True):
        arms = {**levels, CONTROL: "BF16"}
        for arm, style in arm_styles(list(arms), read_labels(results)).items():
            own = rewards[rewards["arm"] == arm]
            if len(own):
                table = own.pivot_table(index="step", columns="run", values="reward")
                label = f"{arms[arm]} ({table.shape[1]})"
                axis.step(table.index, _survivors(table), where="post", **style | {"label": label})
        axis.set(title=kind, xlabel="training step", ylim=(0, 1.03))
        if axis.lines:
            axis.legend(fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, -0.26))
    axes[0].set_ylabel("fraction of runs above\n0.8 of their best reward")
    return figure


def _survivors(rewards: Any) -> np.ndarray:
    """Return the fraction of runs [step] that have stayed above `COLLAPSED` of their best so far."""
    smooth = rewards.rolling(SMOOTH, min_periods=1).mean()
    fallen = (smooth < COLLAPSED * smooth.cummax()).cummax()
    return 1 - fallen.mean(axis=1).to_numpy()


def draw_leaderboard(results: Results) -> Figure:
    """Draw the final reward of every arm minus no correction, ranked, and the mismatch that remains."""
    reward, mismatch = mean_within(results, "reward"), mean_within(results, "rms_log_rho")
    order = reward.groupby("arm").mean().sort_values(ascending=False).index.tolist()
    reference = next(arm for arm in REFERENCES if arm in order)
    figure, (left, right) = new_figure(PAGE, 0.21 * len(order) + 1, ncols=2, sharey=True)
    pairs = dict.fromkeys(order, reference)
    draw_forest(left, reward, pairs, "final reward minus no correction", read_labels(results))
    for row, arm in enumerate(order):
        values = mismatch[arm]
        right.plot(values, [-row] * len(values), "o", color=COLORS[0], ms=3, alpha=0.5, mew=0)
        right.plot([values.mean()], [-row], "|", color=COLORS[1], ms=9, mew=2)
    right.axvline(mismatch[reference].mean(), color=MUTED, lw=0.8)
    right.set(xlabel="final RMS log $\\rho$ (nats)")
    right.set_xscale("symlog", linthresh=1e-3)
    right.set_xlim(-3e-4, 1.5 * mismatch.max())
    return figure


def draw_attribution(results: Results) -> Figure:
    """Draw the Shapley shares of the engine's sites, and the mismatch as site after site is exchanged."""
    shares: Any = results.table("shares")
    rungs: Any = results.table("rungs")
    # The longest ladder has all rungs, in their order.
    groups = max((list(own["group"]) for _, own in shares.groupby("policy")), key=len)
    figure, (left, right) = new_figure(PAGE, 2.7, ncols=2)
    for number, policy in enumerate(dict.fromkeys(shares["policy"])):
        own = shares[shares["policy"] == policy]
        x = np.array([groups.index(group) for group in own["group"]]) + 0.22 * (number - 1)
        reach = np.abs(own[["low", "high"]].to_numpy().T - own["share"].to_numpy())
        points = {"color": COLORS[number], "marker": MARKERS[number], "ls": "none"}
        left.errorbar(x, own["share"], yerr=reach, capsize=2, label=policy, **points)
        left.plot(x, own["alone"], mfc="none", **points)
        climb = rungs[rungs["policy"] == policy]
        known = [0, *(1 + groups.index(group) for group in climb["group"][1:])]
        right.plot(known, climb["rms_log_rho"], **look(number, label=policy))
    left.axhline(0, color=MUTED, lw=0.8)
    left.set_xticks(range(len(groups)), groups, rotation=30, ha="right")
    left.set(ylabel="share of mean squared log $\\rho$", title="Shapley shares (hollow: alone)")
    left.legend(fontsize=6)
    steps = ["none", *(f"+ {group}" for group in groups)]
    right.set_xticks(range(len(steps)), steps, rotation=30, ha="right")
    right.set(ylabel="RMS log $\\rho$ (nats)", title="Sites exchanged in turn")
    return figure


def draw_flagship(results: Results) -> Figure:
    """Draw reward, mismatch and mean rho of rare tokens over steps."""
    steps: Any = results.table("steps")
    figure, axes = new_figure(PAGE, 2.5, ncols=3)
    bins: Any = results.table("bins")
    rare = bins[bins["high"] <= RARE].assign(mean_rho=lambda rows: rows["mean_rho"].fillna(0.0))
    rare = pool_tokens(rare[rare["tokens"] > 0], "mean_rho", ("arm", "run", "step")).rename("mean_rho")
    panels = ((steps, "reward", 20), (steps, "rms_log_rho", 20), (rare.reset_index(), "mean_rho", 1))
    for arm, number in FLAGSHIP.items():
        style = look(number, marker="")
        for axis, (rows, column, smooth) in zip(axes, panels, strict=True):
            runs = rows[rows["arm"] == arm].pivot(index="step", columns="run", values=column)
            runs = runs.rolling(smooth, min_periods=1).mean()
            mean, error = runs.mean(axis=1), runs.sem(axis=1).fillna(0.0)
            axis.plot(runs.index, mean, label=arm if axis is axes[0] else None, **style)
            x = np.asarray(runs.index)
            axis.fill_between(x, mean - error, mean + error, color=style["color"], alpha=0.2, lw=0)
    axes[0].set(title="Reward", xlabel="training step", ylim=(0, 1))
    axes[1].set(title="RMS log $\\rho$ (nats)", xlabel="training step", yscale="log")
    axes[2].axhline(1, color=MUTED, lw=0.6)
    axes[2].set(title="Mean $\\rho$ of rare tokens", xlabel="training step", ylim=(0, None))
    figure.legend(loc="outside upper center", ncols=len(FLAGSHIP))
    return figure
