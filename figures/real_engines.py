"""Real inference engines: measured mismatch, emulated against measured log rho, RL with their rollouts."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures.series import smooth
from figures.style import COLORS, MARKERS, MUTED, line_style, new_figure, plain_log
from simlab.core.results import Results

LEAST_TOKENS = 20
FLOOR = 1e-8  # exact agreement is drawn here
EXACT = 1e-4  # a nearer pair gets no line of its own and no prediction
MODEL_TITLES = {"tiny-moe": "MoE trained in simlab", "smollm2": "SmolLM2-135M"}
SHORT_TITLES = {"tiny-moe": "simlab MoE", "smollm2": "SmolLM2"}
COLUMNS = 4
EMULATIONS = {
    True: (COLORS[0], "o", "emulation in the catalog"),
    False: (COLORS[1], "s", "nearest emulation, if another"),
}
ARM_TITLES = {"none": "No correction", "TIS": "TIS", "R2": "R2 replay", "R3": "R3 replay"}
ROWS = (
    ("reward", "reward", "linear"),
    ("rms_log_rho", "RMS log $\\rho$ (nats)", "log"),
    ("sync_apart", "parity check after sync\n(nats from float32)", "log"),
)


def draw_pairs(results: Results) -> Figure:
    """Draw a row per sampling engine with a mark per scoring engine; below, RMS log rho by probability."""
    pairs, bins = results.table("pairs"), results.table("bins")
    models, samplers = list(pairs.model.unique()), list(pairs.sampling_engine.unique())
    scorers = [name for name in pairs.scoring_engine.unique() if name not in samplers] or samplers
    figure, axes = new_figure(4.6, nrows=2, ncols=len(models), sharex="row", sharey="row", squeeze=False)
    for (above, below), model in zip(axes.T, models, strict=True):
        _draw_scorers(above, pairs[pairs.model == model], samplers, scorers)
        above.set_title(MODEL_TITLES.get(model, model))
        _draw_bins(below, bins[(bins.model == model) & (bins.scoring_engine == scorers[0])], samplers)
    axes[0][0].set_yticks(range(len(samplers)), samplers)
    axes[0][0].invert_yaxis()
    axes[1][0].set_ylabel("RMS log $\\rho$ (nats)")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    axes[1][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=6)
    return figure


def _draw_scorers(axis: Axes, rows: Any, samplers: list[str], scorers: list[str]) -> None:
    own = rows.sampling_engine == rows.scoring_engine
    marks: dict[str, tuple[Any, dict[str, Any]]] = {
        f"scored by {name}": (~own & (rows.scoring_engine == name), {"color": color, "marker": marker})
        for name, color, marker in zip(scorers, COLORS, MARKERS, strict=False)
    }
    marks["scored by its own prefill"] = own, {"color": MUTED, "marker": "D", "markersize": 3}
    for label, (chosen, style) in marks.items():
        values = np.maximum(rows[chosen].rms_log_rho.to_numpy(), FLOOR)
        y = [samplers.index(name) for name in rows[chosen].sampling_engine]
        # Hollow, so that marks at one point are all visible.
        axis.plot(values, y, linestyle="", markerfacecolor="none", label=label, **style)
    axis.set(xscale="log", xlabel="RMS log $\\rho$ of sampled tokens (nats)")
    axis.set_xticks([FLOOR, 1e-6, 1e-4, 1e-2, 1], ["0", "$10^{-6}$", "$10^{-4}$", "0.01", "1"], minor=False)
    axis.minorticks_off()


def _draw_bins(axis: Axes, rows: Any, samplers: list[str]) -> None:
    lows = sorted(rows.low.unique())
    largest = rows[rows.tokens > 0].groupby("sampling_engine").rms_log_rho.max()
    shown = [name for name in samplers if largest.get(name, 0) > EXACT]
    for number, name in enumerate(shown[: len(COLORS)]):
        line = rows[(rows.sampling_engine == name) & (rows.tokens >= LEAST_TOKENS)]
        x = np.searchsorted(lows, line.low.to_numpy())
        axis.plot(x, line.rms_log_rho, label=name, **line_style(number))
        if len(line):
            axis.set_yscale("log")
    axis.set_xticks(range(len(lows)), [f"{low:g}" for low in lows])
    axis.set_xlabel("token probability, lower bound")


def draw_calibration(results: Results) -> Figure:
    """Draw quantiles of predicted against measured log rho, by model and sampling engine."""
    quantiles, fits = results.table("quantiles"), results.table("fits")
    fits = fits[(fits.scoring_engine == fits.scoring_engine.iloc[0]) & (fits.rms_measured > EXACT)]
    panels: Any = list(fits.groupby(["model", "sampling_engine"], sort=False))
    rows, columns = -(-len(panels) // COLUMNS), min(COLUMNS, len(panels))
    figure, axes = new_figure(0.4 + 1.9 * rows, ncols=columns, nrows=rows, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, ((model, sampling_engine), own) in zip(axes.flat, panels, strict=False):
        chosen = (quantiles.model == model) & (quantiles.sampling_engine == sampling_engine)
        shown = quantiles[chosen & (quantiles.scoring_engine == own.scoring_engine.iloc[0])]
        _draw_quantiles(axis, shown, own.set_index("emulation"))
        axis.set_title(f"{sampling_engine}\n{SHORT_TITLES.get(model, model)}", fontsize=7)
    figure.supxlabel("measured log $\\rho$ (nats), quantiles from 1% to 99%", fontsize=8)
    figure.supylabel("predicted log $\\rho$ (nats)", fontsize=8)
    handles = [axes[0][0].plot([], [], mark, c=color)[0] for color, mark, _ in EMULATIONS.values()]
    labels = [label for *_, label in EMULATIONS.values()]
    words = "Numbers: distance (0: equal; 1: as bad as no predicted mismatch); line: perfect prediction"
    figure.legend(handles, labels, loc="outside upper center", ncols=2, title=words, title_fontsize=7)
    return figure


def _draw_quantiles(axis: Axes, quantiles: Any, fits: Any) -> None:
    for label, line in quantiles.groupby("emulation", sort=False):
        color, marker, _ = EMULATIONS[bool(fits.reference_system[label])]
        text = f"{label}: {fits.distance[label]:.2f}"
        axis.plot(line.measured, line.predicted, marker, color=color, markersize=2.2, label=text)
    size = 1.1 * float(np.abs(quantiles.measured).max()) or 1.0
    axis.plot([-size, size], [-size, size], color=MUTED, linewidth=0.7)
    axis.locator_params(nbins=3)
    axis.tick_params(labelsize=6)
    axis.set(xlim=(-size, size), ylim=(-1.5 * size, 1.5 * size))
    axis.legend(loc="upper left", fontsize=5.5, handletextpad=0.0, borderpad=0.0, borderaxespad=0.1)


def draw_rl(results: Results) -> Figure:
    """Draw a column per arm: the real engine as a line, the range of the emulated seeds as a band."""
    steps: Any = results.table("steps")
    real = results.manifest["config"]["real"]
    arms = list(steps["arm"].unique())
    figure, axes = new_figure(4.6, nrows=len(ROWS), ncols=len(arms), sharex=True, sharey="row", squeeze=False)
    for column, arm in zip(axes.T, arms, strict=True):
        rows = steps[steps["arm"] == arm]
        for axis, (metric, label, scale) in zip(column, ROWS, strict=True):
            _draw_metric(axis, rows, metric, real)
            axis.set_yscale(scale)
            if scale == "log":
                plain_log(axis.yaxis)
            if arm == arms[0]:
                axis.set_ylabel(label)
        column[0].set_title(ARM_TITLES[arm])
        column[-1].set_xlabel("training step")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def _draw_metric(axis: Axes, rows: Any, metric: str, real: str) -> None:
    curves = rows.pivot(index="step", columns=["sampling_engine", "seed"], values=metric).dropna(axis=1)
    smoothed = curves.apply(smooth)
    measured = smoothed.columns.get_level_values("sampling_engine") == real
    ours, emulated = smoothed.loc[:, measured], smoothed.loc[:, ~measured]
    raw = curves.loc[:, measured].mean(axis=1)
    axis.plot(raw.index, raw, color=COLORS[1], lw=0.5, alpha=0.4)
    label = f"rollouts of {real} (thin: not smoothed)"
    axis.plot(ours.index, ours.mean(axis=1), color=COLORS[1], label=label)
    if emulated.shape[1]:
        label = f"emulated engine, range of {emulated.shape[1]} seeds"
        low, high = emulated.min(axis=1), emulated.max(axis=1)
        axis.fill_between(emulated.index, low, high, color=MUTED, alpha=0.35, lw=0, label=label)
