"""Mismatch in training runs: by token probability, by kind of noise, by site; change points and collapse."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.arms import ArmRoles, arm_styles
from figures.kinds import (
    Panel,
    describe_lines,
    draw_ends,
    draw_forest,
    draw_interval,
    draw_panel,
    name_level,
)
from figures.series import curves, join_runs, measure, pool_tokens, read_labels
from figures.style import (
    COLORS,
    MARKERS,
    MUTED,
    ArmStyle,
    LineStyle,
    legend_above,
    line_style,
    new_figure,
    plain_log,
)
from simlab.core.results import Results
from simlab.studies import paired_effect
from simlab.studies.contrasts import COLLAPSED
from simlab.studies.estimands import LATE, Estimand
from simlab.studies.samples import Proportion

NONE = "chain: no correction"
CONTROL = "chain: BF16 control"
TWO_BITS = "chain: 2 and 1 bits"
ROLES = ArmRoles(NONE, (CONTROL,))
SCATTERED = {"chain: token TIS": "token TIS", NONE: "no correction", CONTROL: "BF16 control"}
DISTORTED = ("chain: GSPO, delta 3", "chain: GSPO", NONE, CONTROL)
BINS = {"< 0.01": (0.0, 0.01), "0.01 to 0.1": (0.01, 0.1), "0.5 to 0.9": (0.5, 0.9), "> 0.9": (0.9, 1.0)}
MEAN_RATIO = Panel("mean_rho", "mean $\\rho$ by $\\pi_{train}$", reference=1)
ROUNDED = {TWO_BITS: "to nearest, 2 and 1 bits", NONE: "truncated, 2 and 3 bits", CONTROL: "BF16 control"}
METRICS = {
    "rms_log_rho": "RMS log $\\rho$",
    "abs_seq_log_ratio": "|sequence log $\\rho$|",
    "entropy": "entropy",
    "grad_norm": "gradient norm",
    "reward": "reward",
}
NOISE_TITLES = {
    "truncation": "Truncation",
    "round to nearest": "To nearest",
    "fixed noise": "Fixed noise",
    "fresh noise": "Fresh noise",
}
"""The title of each value of the column `noise_kind`."""
WITHOUT_MISMATCH = {
    f"chain: {name}": name for name in ("identical engines", "bypass mode", "on-policy", "on-policy, BF16")
}
OTHERS = {
    "chain: identical engines": CONTROL,
    "chain: bypass mode": CONTROL,
    "chain: on-policy": "chain: on-policy, BF16",
}
"""Arms without noise, with copied log-probs and with on-policy updates, each with its control."""
BIT_LABELS = {NONE: "2 bits (weights: 3)", TWO_BITS: "2 bits (weights: 1)"}
"""Mantissa bits of arms whose weights have more or fewer than their other numbers."""
FLAGSHIP = ("no correction", "TIS", "GSPO", "BF16 control")
FLAGSHIP_ROLES = ArmRoles(FLAGSHIP[0], FLAGSHIP[3:])
FLAGSHIP_PANELS = (
    Panel("reward", "reward", limits=(0, 1)),
    Panel("rms_log_rho", "RMS log $\\rho$ (nats)", log=True),
    Panel("mean_rho", "mean $\\rho$ of rare tokens", limits=(0, None), reference=1),
)
RARE = 0.01
EARLY_MISMATCH = Estimand("RMS log rho, first tenth", lambda view: view.early("rms_log_rho"))


def draw_by_probability(results: Results, level: float) -> Figure:
    """Draw RMS log rho by bin of the first and the last quarter, and mean rho over steps; BF16 as control."""
    rows: Any = join_runs(results, "bins", ("arm", "initial_policy"))
    rows = rows[rows["tokens"] > 0]
    untreated, control = (rows[rows["arm"] == arm] for arm in (NONE, CONTROL))
    figure, (size, drift) = new_figure(2.6, ncols=2)
    for number, (label, part) in enumerate(_quarters(untreated, control).items()):
        squares = part.assign(square=part["rms_log_rho"] ** 2)
        rms = np.sqrt(pool_tokens(squares, "square", ("high", "initial_policy")))
        _draw_bins(size, rms, 0.1 * number, level, line_style(number), label)
    size.set(ylabel="RMS log $\\rho$ (nats)", ylim=(0, None))
    by_bin = {label: _ratio_over_steps(untreated, *ends) for label, ends in BINS.items()}
    rarest = next(iter(BINS))
    by_bin[f"{rarest}, BF16"] = _ratio_over_steps(control, *BINS[rarest])
    draw_panel(drift, by_bin, MEAN_RATIO, arm_styles(list(by_bin)), level)
    for axis in (size, drift):
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize=6.5)
    return figure


def _quarters(untreated: Any, control: Any) -> dict[str, Any]:
    last = untreated["step"].max()
    return {
        "first quarter": untreated[untreated["step"] <= last / 4],
        "last quarter": untreated[untreated["step"] >= 0.75 * last],
        "last quarter, BF16": control[control["step"] >= 0.75 * last],
    }


def _ratio_over_steps(rows: Any, low: float, high: float) -> Any:
    """Return mean rho of tokens with `low` <= pi_train < `high`, by step and initial policy."""
    inside = rows[(rows["low"] >= low - 1e-6) & (rows["high"] <= high + 1e-6)]
    return pool_tokens(inside, "mean_rho", ("step", "initial_policy")).unstack("initial_policy")


def draw_ratio_by_probability(results: Results, level: float) -> Figure:
    """Draw mean rho by bin in the last quarter."""
    rows: Any = join_runs(results, "bins", ("arm", "initial_policy", "steps"))
    late = rows[(rows["step"] >= 0.75 * rows["steps"]) & (rows["tokens"] > 0)]
    figure, (axis,) = new_figure()
    for number, (arm, label) in enumerate(ROUNDED.items()):
        ratio = pool_tokens(late[late["arm"] == arm], "mean_rho", ("high", "initial_policy"))
        _draw_bins(axis, ratio, 0.1 * number, level, {**line_style(number), "ls": "none"}, label)
    axis.axhline(1, color=MUTED, lw=0.8)
    axis.set(ylabel="mean $\\rho$ (last quarter)")
    legend_above(figure, [axis], f"Dots: initial policies; bars: {name_level(level)}")
    return figure


def _draw_bins(axis: Axes, values: Any, offset: float, level: float, style: LineStyle, label: str) -> None:
    """Draw means, intervals and initial policies, by bin of pi_train."""
    bins = [(high, own.dropna()) for high, own in values.groupby("high")]
    x = np.arange(len(bins)) + offset
    axis.plot(x, [own.mean() for _, own in bins], label=label, **style)
    for center, (_, own) in zip(x, bins, strict=True):
        axis.plot([center] * len(own), own, ".", color=style["color"], ms=2.5, alpha=0.6, mew=0)
        draw_interval(axis, center, own, level, {"color": style["color"], "lw": 2.2, "alpha": 0.45})
    axis.set_xticks(range(len(bins)), [f"{high:g}" for high, _ in bins])
    axis.set_xlabel("upper bound of $\\pi_{train}$")


def draw_token_probabilities(results: Results) -> Figure:
    """Draw both probabilities of sampled tokens: token TIS early and late, the other arms late."""
    tokens: Any = results.table("tokens")
    correlations: Any = results.table("correlations").set_index(["arm", "step"])["pcc"]
    early, late = correlations.index.levels[1].min(), correlations.index.levels[1].max()
    panels = [(next(iter(SCATTERED)), early), *((arm, late) for arm in SCATTERED)]
    figure, axes = new_figure(2.3, ncols=len(panels), sharex=True, sharey=True)
    for axis, (arm, step) in zip(axes, panels, strict=True):
        chosen = tokens[(tokens["arm"] == arm) & (tokens["step"] == step)]
        axis.plot([0, 1], [0, 1], color=COLORS[1], lw=0.8, zorder=3)
        axis.plot(chosen["pi_train"], chosen["pi_infer"], ".", ms=2.5, alpha=0.5, color=COLORS[0], mew=0)
        axis.set_title(f"{SCATTERED[arm]}, step {step}\ncorrelation {correlations[arm, step]:.4f}")
        axis.set(xlabel="$\\pi_{train}$", aspect="equal")
    axes[0].set_ylabel("$\\pi_{infer}$")
    return figure


def draw_change_points(results: Results, level: float) -> Figure:
    """Draw the step at which each metric of each run leaves its level, with and without distorted weights."""
    rows: Any = join_runs(results, "changes", ("arm", "initial_policy", "steps"))
    figure, (axis,) = new_figure(4.2)
    arms = [arm for arm in DISTORTED if arm in set(rows["arm"])]
    for number, (arm, style) in enumerate(arm_styles(arms, read_labels(results), ROLES).items()):
        color = style["color"]
        for row, metric in enumerate(METRICS):
            changes = rows[(rows["arm"] == arm) & (rows["metric"] == metric)]
            y, is_significant = 0.3 - 0.2 * number - row, changes["p_value"] < 0.05
            styles = {True: {"alpha": 0.6, "mew": 0}, False: {"mfc": "none"}}
            for significant, mark in styles.items():
                x = changes["step"][is_significant == significant]
                axis.plot(x, [y] * len(x), "o", color=color, ms=3, **mark)
            steps = changes.groupby("initial_policy")["step"].mean()
            draw_interval(axis, y, steps, level, {"color": color, "lw": 3.5, "alpha": 0.3}, along="x")
        axis.plot([], [], "o", color=color, label=style["label"])
    axis.set_yticks([-row for row in range(len(METRICS))], list(METRICS.values()))
    axis.set(xlabel="training step of the change (hollow: p > 0.05)", xlim=(0, rows["steps"].max()))
    legend_above(figure, [axis], f"Dots: runs; bars: {name_level(level)} of the mean, within the run")
    return figure


def draw_noise_kinds(results: Results, level: float) -> Figure:
    """Draw final reward minus BF16 against the mismatch that each kind of noise injects, and without any."""
    rows: Any = join_runs(results, "chunks", ("arm", "initial_policy", "steps"))
    late = rows[rows["step"] >= LATE * rows["steps"]].groupby(["arm", "initial_policy", "run"])
    rewards = late["reward"].mean().groupby(["arm", "initial_policy"]).mean()
    noise = measure(EARLY_MISMATCH)(results)
    figure, axes = new_figure(2.7, ncols=2)
    for number, kind in enumerate(NOISE_TITLES):
        arms = _select_noise(results, kind)
        _draw_levels(axes[0], rewards, noise, arms, line_style(number), kind, level)
    axes[0].axhline(0, color=MUTED, lw=0.8)
    label = "final reward minus BF16 control"
    axes[0].set(xlabel="initial RMS log $\\rho$ (nats)", ylabel=label, xscale="log")
    plain_log(axes[0].xaxis)
    pairs = dict.fromkeys((NONE, *WITHOUT_MISMATCH, CONTROL), CONTROL)
    draw_forest(axes[1], rewards, pairs, label, read_labels(results), level)
    legend_above(figure, axes)
    return figure


def _select_noise(results: Results, kind: str) -> list[str]:
    """Return the arms that differ from no correction in their noise alone."""
    runs: Any = results.table("runs")
    if "noise_kind" not in runs:
        return []
    plain = (runs["objective"] == "grpo") & (runs["old_log_probs"] == "train") & (runs["minibatches"] == 4)
    return list(runs[plain & (runs["noise_kind"] == kind) & (runs["arm"] != CONTROL)]["arm"].unique())


def _draw_levels(
    axis: Axes, rewards: Any, noise: Any, arms: Sequence[str], style: LineStyle, label: str, level: float
) -> None:
    """Draw differences from the control, with intervals over initial policies, by mean noise."""
    present = set(rewards.index.unique("arm"))
    shown = (arm for arm in arms if {CONTROL, arm} <= present)
    arms = sorted(shown, key=lambda arm: noise[arm].mean())
    differences = [(rewards[arm] - rewards[CONTROL]).dropna() for arm in arms]
    intervals = [paired_effect(each, 0.0, each.index, level=level) for each in differences if len(each) > 1]
    if len(intervals) == len(arms) > 0:
        low, mean, high = np.transpose([(each.low, each.effect, each.high) for each in intervals])
        x = [float(np.mean(noise[arm])) for arm in arms]
        axis.errorbar(x, mean, yerr=[mean - low, high - mean], capsize=2, label=label, **style)
        for at, each in zip(x, differences, strict=True):
            axis.plot([at] * len(each), each, ".", color=style["color"], ms=2.5, alpha=0.6, mew=0)


def draw_survival(results: Results, level: float) -> Figure:
    """Draw the fraction of initial policies with at least half of the control's reward, by noise."""
    groups = {
        title: dict.fromkeys(_select_noise(results, kind), CONTROL) for kind, title in NOISE_TITLES.items()
    }
    groups["Other arms"] = OTHERS
    figure, axes = new_figure(3.0, ncols=len(groups), sharey=True)
    for axis, (title, control_of) in zip(axes, groups.items(), strict=True):
        styles = arm_styles(list(control_of), read_labels(results) | BIT_LABELS)
        for number, (arm, control) in enumerate(control_of.items()):
            # Each arm from its own initial policies: others may have fewer.
            rewards = curves(results, [control, arm], ["held_out_train"], "diagnostics")
            if {arm, control} <= set(rewards):
                _draw_alive(axis, rewards[arm], rewards[control], styles[arm], number, level)
        axis.set(title=title, xlabel="training step", ylim=(0, 1.03), xticks=(0, 100, 200))
        if axis.lines:
            axis.legend(fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, -0.26))
    axes[0].set_ylabel("fraction of policies with half of\nthe control's held-out reward\n(training engine)")
    words = f"Gray: last quarter; bars: {name_level(level)}"
    figure.legend([], [], title=words, title_fontsize=6.5, loc="outside upper center")
    return figure


def _draw_alive(axis: Axes, own: Any, control: Any, style: ArmStyle, number: int, level: float) -> None:
    """Draw the fraction of policies with enough reward over steps, and its interval in the last quarter."""
    alive, last = (own >= COLLAPSED * control).mean(axis=1), own.index.max()
    axis.step(alive.index, alive, where="post", **style)
    late, late_control = (rewards[rewards.index >= LATE * last].mean() for rewards in (own, control))
    sample = Proportion(int((late >= COLLAPSED * late_control).sum()), len(late))
    low, high = sample.interval(1 - level)
    color = style["color"]
    bar, tick = (
        {"color": color, "lw": 2.2, "alpha": 0.45},
        {"color": color, "marker": "_", "ms": 8, "mew": 1.4},
    )
    draw_ends(axis, last * (1.1 + 0.1 * number), (low, sample.estimate, high), bar, tick)
    axis.axvspan(1.04 * last, last * 1.46, color=MUTED, alpha=0.04, lw=0)


def draw_attribution(results: Results) -> Figure:
    """Draw the Shapley shares of the engine's sites, and the mismatch as site after site is exchanged."""
    shares: Any = results.table("shares")
    rungs: Any = results.table("rungs")
    # The longest ladder has all rungs, in their order.
    groups = max((list(own["group"]) for _, own in shares.groupby("policy")), key=len)
    figure, (left, right) = new_figure(2.7, ncols=2)
    for number, policy in enumerate(dict.fromkeys(shares["policy"])):
        own = shares[shares["policy"] == policy]
        x = np.array([groups.index(group) for group in own["group"]]) + 0.22 * (number - 1)
        reach = np.abs(own[["low", "high"]].to_numpy().T - own["share"].to_numpy())
        points = {"color": COLORS[number], "marker": MARKERS[number], "ls": "none"}
        left.errorbar(x, own["share"], yerr=reach, capsize=2, label=policy, **points)
        left.plot(x, own["alone"], mfc="none", **points)
        climb = rungs[rungs["policy"] == policy]
        known = [0, *(1 + groups.index(group) for group in climb["group"][1:])]
        right.plot(known, climb["rms_log_rho"], label=policy, **line_style(number))
    left.axhline(0, color=MUTED, lw=0.8)
    left.set_xticks(range(len(groups)), groups, rotation=30, ha="right")
    left.set(ylabel="share of mean squared log $\\rho$", title="Shapley shares (hollow: alone; bars: 95% CI)")
    left.legend(fontsize=6)
    steps = ["none", *(f"+ {group}" for group in groups)]
    right.set_xticks(range(len(steps)), steps, rotation=30, ha="right")
    right.set(ylabel="RMS log $\\rho$ (nats)", title="Sites exchanged in turn")
    return figure


def draw_flagship(results: Results, level: float) -> Figure:
    """Draw reward, mismatch and mean rho of rare tokens over steps."""
    steps: Any = results.table("steps")
    bins: Any = results.table("bins")
    rare = bins[(bins["high"] <= RARE) & (bins["tokens"] > 0)]
    rare = pool_tokens(rare, "mean_rho", ("arm", "warm_start", "step")).rename("mean_rho").reset_index()
    figure, axes = new_figure(2.5, ncols=len(FLAGSHIP_PANELS))
    styles = arm_styles(FLAGSHIP, roles=FLAGSHIP_ROLES)
    for axis, panel in zip(axes, FLAGSHIP_PANELS, strict=True):
        rows = steps if panel.metric in steps else rare
        by_arm = {
            arm: own.pivot_table(index="step", columns="warm_start", values=panel.metric)
            for arm, own in rows.groupby("arm")
        }
        draw_panel(axis, {arm: by_arm[arm] for arm in FLAGSHIP if arm in by_arm}, panel, styles, level)
    legend_above(figure, axes, describe_lines(steps["warm_start"].nunique(), level))
    return figure
