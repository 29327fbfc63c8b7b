"""Kinds of figures: each reads the tables of one experiment and draws them from its parameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.arms import NO_ROLES, ArmRoles, arm_styles
from figures.series import Estimate, curves, read_labels, smooth, subtract
from figures.style import COLORS, MUTED, ArmStyle, legend_above, new_figure, plain_log
from simlab.core.results import Results
from simlab.studies import paired_effect

NARROW, WIDE = 5, 100  # a logarithmic axis of less is linear; up to the other it has ticks at 1, 2 and 5
LEVEL = 0.95  # confidence level where the board has none
SMALLEST = 1e-8  # smallest positive part of a logarithmic axis with zeros
GAP = 0.055  # distance of the intervals at the right of a panel, in lengths of a run
REACH = 0.1  # of a forest beyond the initial policies and 0, in lengths of their range
DOT: dict[str, Any] = {"ms": 2.8, "mew": 0.2, "mec": "white", "zorder": 4, "clip_on": False, "ls": "none"}
"""Mark of an initial policy, smaller than a bar is wide; the white edge keeps it apart from others."""
CUT: dict[str, Any] = {"ms": 4, "mew": 0, "clip_on": False, "ls": "none", "zorder": 5}
CUTS = {"x": "<>", "y": "v^"}
"""Triangles at the ends of an interval that goes on beyond the axis."""
BEYOND = "triangles: beyond the axis"
UNBOUNDED = "no bar: unbounded interval"
Marks = list[tuple[Any, Mapping[str, Any]]]
"""Numbers along a bar, and their style."""


@dataclass(frozen=True)
class Custom:
    """A figure that no other kind draws: a function, how to read it, and the arms it shows (None: all)."""

    function: Callable[..., Figure]
    encoding: str = ""
    arms: Sequence[str] | None = None

    def draw(self, results: Results, level: float = LEVEL) -> Figure:  # noqa: ARG002
        """Draw the figure, whose intervals have a level of their own."""
        return self.function(results)


@dataclass(frozen=True)
class Leveled(Custom):
    """A figure of training runs: its function takes the confidence level as well."""

    def draw(self, results: Results, level: float = LEVEL) -> Figure:
        """Draw the figure with intervals of `level`."""
        return self.function(results, level)


@dataclass(frozen=True)
class Panel:
    """One metric over steps: a column of `table` and its label; logarithmic if `log` and wide.

    With `averaged_with`, a second column, it is the mean of both.
    """

    metric: str
    label: str
    log: bool = False
    limits: tuple[float, float | None] | None = None
    reference: float | None = None
    table: str = "chunks"
    averaged_with: str = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns whose mean is drawn."""
        return (self.metric, self.averaged_with) if self.averaged_with else (self.metric,)

    def minus(self, reference: str) -> "Panel":
        """Return the panel of differences from an arm with the label `reference`."""
        label = f"{self.label}\nminus {reference}"
        return replace(self, label=label, log=False, limits=None, reference=0)


@dataclass(frozen=True)
class Curves:
    """Metrics of arms over steps, one panel each.

    Args:
        panels: the metrics.
        arms: the arms to draw; by default those of the criteria of the figure's claims, None for those that
            the manifest lists.
        extra: arms in addition to those of the criteria.
        height: of the figure, in inches.
        rows: of panels.
        mark_best: an arm; a dotted line marks the step at which its mean reward is largest.
        labels: replace those of the table, by arm.
        minus: an arm; the others are drawn minus this one, paired by initial policy.
        roles: of the arms, by default those of the experiment.
    """

    panels: Sequence[Panel]
    arms: Sequence[str] | None = ()
    extra: Sequence[str] = ()
    height: float = 2.3
    rows: int = 1
    mark_best: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    minus: str = ""
    roles: ArmRoles = NO_ROLES

    encoding = (
        "Lines: mean over initial policies (geometric on log axes), thin where not smoothed (moving mean, on "
        "log axes median). Gray: last quarter; dots: initial policies; bars: family-wise CI."
    )

    def with_arms(self, arms: Sequence[str]) -> "Curves":
        """Return the kind with `arms`, those of the criteria, if it has none of its own."""
        return self if self.arms is None or self.arms else replace(self, arms=(*arms, *self.extra))

    def draw(self, results: Results, level: float = LEVEL) -> Figure:
        """Draw the panels row by row under one legend."""
        arms = results.manifest["config"]["arms"] if self.arms is None else self.arms
        columns = -(-len(self.panels) // self.rows)
        figure, grid = new_figure(self.height, nrows=self.rows, ncols=columns, squeeze=False)
        axes = list(grid.flat)
        by_panel = [curves(results, arms, panel.metrics, panel.table) for panel in self.panels]
        labels = read_labels(results) | dict(self.labels)
        panels = self.panels
        if self.minus:
            by_panel = [subtract(each, self.minus) for each in by_panel]
            panels = [panel.minus(labels.get(self.minus, self.minus)) for panel in panels]
        shown = [arm for arm in arms if any(arm in each for each in by_panel)]
        styles = arm_styles(shown, labels, self.roles)
        drawn = zip(axes, by_panel, panels, strict=True)
        notes = [note for each in drawn for note in draw_panel(*each, styles, level)]
        num = max((curve.shape[1] for each in by_panel for curve in each.values()), default=0)
        is_log = any(axis.get_yscale() == "log" for axis in axes)
        words = "; ".join([describe_lines(num, level), *list_notes(notes)])
        legend_above(figure, axes, words + ". Log axes: geometric means" * is_log)
        if self.mark_best:
            rewards = curves(results, arms, ["reward"])
            for axis in axes:
                _mark_best(axis, rewards, self.mark_best)
        return figure


@dataclass(frozen=True)
class Forest:
    """Arms minus their reference arms, one row each, paired by initial policy.

    Args:
        pairs: maps each arm to the arm that is subtracted; an arm paired with itself is only listed. One arm
            alone is subtracted from all arms of the criteria of the figure's claims.
        panels: maps the label of each axis to its estimate.
        height: of the figure, in inches.
        row_labels: replaces the names of the arms.
    """

    pairs: Mapping[str, str] | str
    panels: Mapping[str, Estimate]
    height: float
    row_labels: Sequence[str] = ()
    encoding = (
        "Final: last quarter. Dots: initial policies; ticks: mean; bars: family-wise CI; "
        "right: means of arms, n in brackets."
    )

    @property
    def arms(self) -> Sequence[str]:
        """The arms and their references."""
        return [self.pairs] if isinstance(self.pairs, str) else [*self.pairs, *self.pairs.values()]

    def with_arms(self, arms: Sequence[str]) -> "Forest":
        """Return the kind that subtracts its one arm from each of `arms`, those of the criteria."""
        if not isinstance(self.pairs, str):
            return self
        return replace(self, pairs=dict.fromkeys([self.pairs, *arms], self.pairs))

    def draw(self, results: Results, level: float = LEVEL) -> Figure:
        """Draw the panels side by side, the first arm on top."""
        assert not isinstance(self.pairs, str)
        figure, axes = new_figure(self.height, ncols=len(self.panels), sharey=True, squeeze=False)
        for axis, (label, estimate) in zip(axes[0], self.panels.items(), strict=True):
            draw_forest(axis, estimate(results), self.pairs, label, read_labels(results), level)
        if self.row_labels:
            axes[0][0].set_yticks([-row for row in range(len(self.row_labels))], self.row_labels)
        return figure


@dataclass(frozen=True)
class Bars:
    """Horizontal bars of a table, in the order of its rows from the top.

    Args:
        table: its name.
        value: the column of the lengths; rows without one are left out.
        names: the columns that name a bar.
        label: of the axis.
        color_by: the column whose values are bars of different colors under one name.
        panel: the column whose values have a panel each.
        first: a column; only rows with its first value are drawn.
        log: whether the axis is logarithmic.
    """

    table: str
    value: str
    names: Sequence[str]
    label: str
    color_by: str = ""
    panel: str = ""
    first: str = ""
    log: bool = True
    arms = None
    encoding = "Numbers: lengths of the bars."

    def draw(self, results: Results, level: float = LEVEL) -> Figure:  # noqa: ARG002
        """Draw the panels side by side, with one legend of the colors below."""
        rows: Any = results.table(self.table).dropna(subset=[self.value])
        if self.first:
            rows = rows[rows[self.first] == rows[self.first].iloc[0]]
        rows = rows.assign(bar=rows[list(self.names)].agg(", ".join, axis=1))
        colors = list(dict.fromkeys(rows[self.color_by])) if self.color_by else [""]
        panels = rows.groupby(self.panel, sort=False) if self.panel else [("", rows)]
        count = max(part["bar"].nunique() for _, part in panels)
        height = 0.9 + count * (0.1 + 0.09 * len(colors))
        figure, axes = new_figure(height, ncols=len(panels), squeeze=False)
        for axis, (title, part) in zip(axes[0], panels, strict=True):
            self._draw_panel(axis, part, colors)
            axis.set_title(str(title))
        if self.color_by:
            handles = [axes[0][0].barh(0, 0, color=COLORS[i], label=name) for i, name in enumerate(colors)]
            figure.legend(handles=handles, loc="outside lower center", ncols=len(colors))
        return figure

    def _draw_panel(self, axis: Axes, rows: Any, colors: Sequence[str]) -> None:
        names = list(dict.fromkeys(rows["bar"]))[::-1]
        height = 0.8 / len(colors)
        for row in rows.to_dict("records"):
            number = colors.index(row[self.color_by]) if self.color_by else 0
            y = names.index(row["bar"]) + height * ((len(colors) - 1) / 2 - number)
            axis.barh(y, row[self.value], height=height, color=COLORS[number])
            axis.text(row[self.value], y, f" {row[self.value]:.3g}", va="center", fontsize=5, color=MUTED)
        first = axis.figure.axes[0]
        is_repeated = axis is not first and names == [label.get_text() for label in first.get_yticklabels()]
        axis.set_yticks(range(len(names)), [""] * len(names) if is_repeated else names, fontsize=6)
        axis.set(xlabel=self.label, xscale="log" if self.log else "linear", ylim=(-0.6, len(names) - 0.4))
        low, high = rows[self.value].min(), rows[self.value].max()
        if self.log:
            plain_log(axis.xaxis)
        axis.set_xlim(low / 1.5 if self.log else 0, high * (2 if self.log else 1.2))
        axis.grid(visible=False, axis="y")


Kind = Curves | Forest | Bars | Custom
"""The kinds of figures; `encoding` explains lines, bands, dots and bars."""


def name_level(level: float) -> str:
    """Return the name of an interval of `level`, which the number of claims of a paper may have widened."""
    return f"{100 * level:.4g}% CI{' (family-wise)' if level > LEVEL else ''}"


def describe_lines(num: int, level: float) -> str:
    """Return how to read panels of `num` initial policies; one alone has no interval."""
    if num == 1:
        return "Lines: one initial policy, mean over seeds. Gray: last quarter"
    dots = f"dots: policies; bars: {name_level(level)}"
    return f"Lines: mean of {num} initial policies. Gray: last quarter; {dots}"


def draw_panel(
    axis: Axes,
    by_arm: Mapping[str, pd.DataFrame],
    panel: Panel,
    styles: Mapping[str, ArmStyle],
    level: float,
) -> list[str]:
    """Draw the means of curves [step, initial policy], and their last quarter with intervals at the right.

    Returns notes about intervals that the axis, which shows every policy, cuts or that have no end.

    Means are geometric on logarithmic axes without zeros. A mean is smoothed over at most a tenth of its
    run, by the median on logarithmic axes, over the raw one. `styles` are those of `arm_styles`.
    """
    axis.set(xlabel="training step", ylabel=panel.label)
    curve_of: dict[str, Any] = {arm: curve for arm, curve in by_arm.items() if len(curve)}
    if not curve_of:
        return []
    values = np.concatenate([curve.to_numpy(float).ravel() for curve in curve_of.values()])
    low, high = np.nanmin(values, where=values > 0, initial=np.inf), np.nanmax(values)
    log = panel.log and high > NARROW * low
    geometric = bool(log and np.nanmin(values) > 0)
    last = max(curve.index.max() for curve in curve_of.values())
    for arm, curve in curve_of.items():
        _draw_mean(axis, curve, log, geometric, styles[arm])
    late = {arm: curve[curve.index >= 0.75 * last] for arm, curve in curve_of.items()}
    ends = {arm: (np.log(rows) if geometric else rows).mean().dropna() for arm, rows in late.items()}
    back = np.exp if geometric else np.asarray
    x_of_arm = {arm: last * (1.07 + GAP * number) for number, arm in enumerate(ends)}
    # Before the axis is scaled, so that it shows every policy.
    for arm, own in ends.items():
        axis.plot([x_of_arm[arm]] * len(own), back(own), "o", color=styles[arm]["color"], **DOT)
    # The labels of four numbers such as 2000 do not fit below one of four panels.
    spec: Any = axis.get_subplotspec()
    ticks = MaxNLocator(4 if spec.get_gridspec().ncols < 4 else 2).tick_values(0, last)
    axis.set_xticks([tick for tick in ticks if 0 <= tick <= 1.02 * last])
    axis.axvspan(1.03 * last, last * (1.09 + GAP * len(late)), color=MUTED, alpha=0.1, lw=0)
    axis.margins(x=0.01)
    _scale(axis, panel, log, geometric, float(low), float(high))
    limits, notes = axis.get_ylim(), []
    for arm, own in ends.items():
        bar = {"color": styles[arm]["color"], "lw": 3.4, "alpha": 0.4}
        tick = {"color": bar["color"], "marker": "_", "ms": 6, "mew": 1.4, "zorder": 4}
        notes += [draw_interval(axis, x_of_arm[arm], own, level, bar, tick, limits=limits, back=back)]
    axis.set_ylim(limits)
    return list_notes(notes)


def _draw_mean(axis: Axes, curve: Any, log: bool, geometric: bool, style: Mapping[str, Any]) -> None:
    mean = np.exp(np.log(curve).mean(axis=1)) if geometric else curve.mean(axis=1)
    smoothed = smooth(mean, "median" if log else "mean")
    if not smoothed.equals(mean):
        axis.plot(mean.index, mean, color=style["color"], lw=0.5, alpha=0.4)
    # Dashed lines over solid ones, which would hide them where both coincide.
    axis.plot(mean.index, smoothed, **style, zorder=2 if style["ls"] == "-" else 2.1)


def _scale(axis: Axes, panel: Panel, log: bool, geometric: bool, low: float, high: float) -> None:
    """Scale the y axis; a logarithmic one has room for zeros below."""
    if geometric:
        axis.set_yscale("log")
        if high < WIDE * low:
            plain_log(axis.yaxis)
    elif log:
        smallest = 10.0 ** np.floor(np.log10(max(low, high * SMALLEST)))
        axis.set_yscale("symlog", linthresh=smallest)
        axis.set_ylim(-0.5 * smallest, None)
    if panel.limits:
        axis.set_ylim(*panel.limits)
    if panel.reference is not None:
        axis.axhline(panel.reference, color=MUTED, lw=0.8)


def draw_interval(
    axis: Axes,
    at: float,
    sample: pd.Series,
    level: float,
    bar: Mapping[str, object],
    tick: Mapping[str, object] | None = None,
    along: str = "y",
    limits: tuple[float, float] = (-np.inf, np.inf),
    back: Callable = np.asarray,
) -> str:
    """Draw the interval of the mean over initial policies; nothing for a single policy.

    An interval without ends has no bar: a bar across the axis would only hide the policies. Returns the note
    that explains the bar, if it needs one.

    Args:
        axis: the axes.
        at: place of the bar across its direction.
        sample: a number by initial policy.
        level: of the interval.
        bar: its style.
        tick: style of the mark at the mean.
        along: direction of the bar, `x` or `y`.
        limits: where the bar is cut, with a triangle.
        back: maps the sample to the units of the axis.
    """
    if len(sample) < 2:
        return ""
    interval = paired_effect(sample, 0.0, sample.index, level=level)
    if np.isinf([interval.low, interval.high]).all():
        _plot_marks(axis, at, [(back([interval.effect]), {"ls": "none", **tick})] if tick else [], along)
        return UNBOUNDED
    ends = back([interval.low, interval.effect, interval.high])
    return BEYOND if draw_ends(axis, at, ends, bar, tick, along, limits) else ""


def draw_ends(
    axis: Axes,
    at: float,
    interval: Sequence[float],
    bar: Mapping[str, object],
    tick: Mapping[str, object] | None = None,
    along: str = "y",
    limits: tuple[float, float] = (-np.inf, np.inf),
) -> bool:
    """Draw an interval (low, estimate, high); return whether it goes on beyond `limits`.

    The other arguments are those of `draw_interval`.
    """
    low, estimate, high = interval
    cuts = low < limits[0], high > limits[1]
    marks: Marks = [(np.clip([low, high], *limits), bar)]
    marks += [([estimate], {"ls": "none", **tick})] if tick else []
    for is_cut, limit, marker in zip(cuts, limits, CUTS[along], strict=True):
        marks += [([limit], {"color": bar["color"], "marker": marker, **CUT})] if is_cut else []
    _plot_marks(axis, at, marks, along)
    return any(cuts)


def _plot_marks(axis: Axes, at: float, marks: Marks, along: str) -> None:
    for values, style in marks:
        across = [at] * len(values)
        axis.plot(*((values, across) if along == "x" else (across, values)), **style)


def list_notes(notes: Sequence[str]) -> list[str]:
    """Return each note once, without empty ones."""
    return [note for note in dict.fromkeys(notes) if note]


def draw_forest(
    axis: Axes,
    ends: pd.Series,
    pairs: Mapping[str, str],
    label: str,
    labels: Mapping[str, str],
    level: float,
) -> None:
    """Draw arms minus others from equal initial policies, the mean of each arm at the right.

    Args:
        axis: the axes.
        ends: a number by arm and initial policy.
        pairs: maps each arm to the one that is subtracted; an arm paired with itself is only listed.
        label: of the axis.
        labels: the label of each arm.
        level: of the intervals.
    """
    known = {arm: other for arm, other in pairs.items() if {arm, other} <= set(ends.index.unique("arm"))}
    if not known:
        axis.set(xlabel=label)
        return
    text: Any = {"xycoords": axis.get_yaxis_transform(), "va": "center", "fontsize": 7}
    axis.annotate("mean (n)", (1.02, 0.8), color=MUTED, **text)
    values: Any = ends
    differences = {}
    for row, (arm, other) in enumerate(known.items()):
        difference = (values[arm] - values[other]).dropna()
        own = values[arm].loc[difference.index]
        axis.annotate(f"{own.mean():.3g} ({len(own)})", (1.02, -row), **text)
        if arm != other:
            differences[-row] = difference
    for height, own in differences.items():
        axis.plot(own, [height] * len(own), "o", color=COLORS[0], **DOT)
    axis.axvline(0, color=MUTED, lw=0.8)
    low, high = (float(end) for end in axis.dataLim.intervalx)
    limits = low - REACH * (high - low), high + REACH * (high - low)
    if high > low:
        axis.set_xlim(limits)
    bar = {"color": COLORS[5], "lw": 5.5, "alpha": 0.5}
    tick = {"color": COLORS[1], "marker": "|", "ms": 10, "mew": 2}
    notes = [
        draw_interval(axis, height, own, level, bar, tick, along="x", limits=limits)
        for height, own in differences.items()
    ]
    axis.set(xlabel="\n".join([label, f"bars: {name_level(level)}", *list_notes(notes)]))
    axis.set_yticks([-row for row in range(len(known))], [labels.get(arm, arm) for arm in known])
    axis.set(ylim=(-len(known) + 0.4, 0.6))
    axis.xaxis.set_major_locator(MaxNLocator(4))


def _mark_best(axis: Axes, rewards: Mapping[str, Any], arm: str) -> None:
    if arm not in rewards:
        return
    step = rewards[arm].mean(axis=1).idxmax()
    axis.axvline(step, color=MUTED, ls=":", lw=1)
    text: Any = {"ha": "center", "va": "bottom", "fontsize": 6, "color": MUTED}
    axis.annotate("best mean reward", (step, 1.01), xycoords=axis.get_xaxis_transform(), **text)
