"""Estimands: one number of a run, computed from its tables.

`early` is the first tenth of a run, `late` its last quarter.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from simlab.core.results import Results

Frame = Any  # a pandas frame; its stubs widen every operation
EARLY, LATE = 0.1, 0.75
PEAK, CHUNK = 5, 10  # chunks, and steps of one
RARE, COMMON = 0.01, 0.5


@dataclass(frozen=True)
class Tables:
    """Tables in memory, read as `Results` are."""

    tables: Mapping[str, Frame]

    @property
    def table_names(self) -> list[str]:
        """The names of the tables."""
        return list(self.tables)

    def table(self, name: str) -> Frame:
        """Return one table."""
        return self.tables[name]


@dataclass(frozen=True)
class RunRows:
    """The rows of one run in a table: `rows[column]` is an array. A frame per run would take longer."""

    columns: Mapping[str, np.ndarray]
    chosen: np.ndarray

    def __getitem__(self, column: str) -> np.ndarray:
        """Return the values of a column."""
        return self.columns[column][self.chosen]

    def __contains__(self, column: str) -> bool:
        """Return whether the table has a column."""
        return column in self.columns


REWARD_UNIT, LOG, NATS, RANKS, STEPS = "reward", "log ratio", "nats", "rank correlation", "steps"
UNITS = {"reward": REWARD_UNIT, "entropy": NATS}
"""The units of metrics; other metrics are pure numbers."""
NO_ROWS = RunRows({}, np.arange(0))


@dataclass(frozen=True)
class View:
    """The tables of one run: its row in `runs`, its `chunks`, `bins`, `changes` and `diagnostics`."""

    steps: int
    diverged: bool
    chunks: RunRows = NO_ROWS
    bins: RunRows = NO_ROWS
    changes: RunRows = NO_ROWS
    diagnostics: RunRows = NO_ROWS

    @cached_property
    def chunk_steps(self) -> np.ndarray:
        """The first step of each chunk."""
        return self.chunks["step"]

    def curve(self, metric: str) -> np.ndarray:
        """Return the means over chunks."""
        return np.asarray(self.chunks[metric], float)

    def early(self, metric: str) -> float:
        """Return the mean over the first tenth."""
        return _mean(self.chunks, metric, self.chunk_steps < EARLY * self.steps)

    def late(self, metric: str) -> float:
        """Return the mean over the last quarter, or over the last chunks there are."""
        start = min(LATE * self.steps, self.chunk_steps.max(initial=0))
        return _mean(self.chunks, metric, self.chunk_steps >= start)

    def late_diagnostic(self, metric: str) -> float:
        """Return the mean of a diagnostic over the last quarter."""
        return _mean(self.diagnostics, metric, self.diagnostic("step") >= LATE * self.steps)

    def diagnostic_change(self, metric: str) -> float:
        """Return the mean of a diagnostic over the last quarter minus that over the first."""
        is_early = self.diagnostic("step") <= (1 - LATE) * self.steps
        return self.late_diagnostic(metric) - _mean(self.diagnostics, metric, is_early)

    def diagnostic(self, metric: str) -> np.ndarray:
        """Return the curve of a diagnostic; empty if not recorded."""
        rows = self.diagnostics
        return np.asarray(rows[metric], float) if metric in rows else np.empty(0)

    def mean_of_bins(self, metric: str, low: float, high: float, late: bool) -> float:
        """Return the mean over tokens with pi_train in [low, high), in the first tenth or last quarter."""
        step, tokens = self.bins["step"], self.bins["tokens"]
        chosen = step >= LATE * self.steps if late else step < EARLY * self.steps
        chosen &= (self.bins["low"] >= low - 1e-6) & (self.bins["high"] <= high + 1e-6) & (tokens > 0)
        if not chosen.any():
            return np.nan
        power = 2 if metric == "rms_log_rho" else 1
        return float(np.average(self.bins[metric][chosen] ** power, weights=tokens[chosen]) ** (1 / power))


@dataclass(frozen=True)
class Estimand:
    """A number of a run, what it is in words, and its unit; no unit of a pure number."""

    text: str
    of: Callable[[View], float]
    unit: str = ""

    def __call__(self, view: View) -> float:
        """Return the number."""
        return float(self.of(view))


def late(metric: str, quantity: str) -> Estimand:
    """Return the mean over the last quarter."""
    return Estimand(f"{quantity}, last quarter", lambda view: view.late(metric), UNITS.get(metric, ""))


def late_log(metric: str, quantity: str) -> Estimand:
    """Return the logarithm of the mean over the last quarter."""
    return Estimand(f"log of {quantity}, last quarter", lambda view: np.log(view.late(metric)), LOG)


def growth(metric: str, quantity: str) -> Estimand:
    """Return the log of the ratio of the last quarter's mean to that of the first tenth."""
    return Estimand(
        f"log growth of {quantity}, last quarter against first tenth",
        lambda view: np.log(view.late(metric) / view.early(metric)),
        LOG,
    )


def change(metric: str, quantity: str) -> Estimand:
    """Return the mean over the last quarter minus that over the first tenth."""
    return Estimand(
        f"change of {quantity}, last quarter minus first tenth",
        lambda view: view.late(metric) - view.early(metric),
        UNITS.get(metric, ""),
    )


def rank_correlation(
    one: str, other: str, quantity: str, curve: Callable[[View, str], np.ndarray] = View.curve
) -> Estimand:
    """Return Spearman's correlation of two curves of a run: over its chunks, or its diagnostics."""
    return Estimand(
        f"rank correlation over the run of {quantity}",
        lambda view: _rank_runs(curve(view, one), curve(view, other)),
        RANKS,
    )


def first_change(metric: str, before: str, quantity: str) -> Estimand:
    """Return the steps from the change point of `before` to that of `metric`."""

    def of(view: View) -> float:
        step = dict(zip(view.changes["metric"], view.changes["step"], strict=True))
        return float(step[metric] - step[before])

    return Estimand(f"steps between the change points of {quantity}", of, STEPS)


def steps_to_gain(gain: float) -> Estimand:
    """Return the log of the steps until the reward, over five chunks, is `gain` above its first two.

    A run that never gains it counts with all its steps, so that no policy is left out.
    """

    def of(view: View) -> float:
        reached = np.flatnonzero(_smooth(view) >= view.curve("reward")[:2].mean() + gain)
        return float(np.log(view.chunk_steps[reached[0]] + CHUNK if len(reached) else view.steps))

    return Estimand(f"log of the steps until a reward {gain} above the first", of, LOG)


def largest_growth(metric: str, quantity: str) -> Estimand:
    """Return the log of the ratio of the largest mean over five chunks to that of the first tenth."""
    return Estimand(
        f"log growth of {quantity}, best 50 steps against first tenth",
        lambda view: float(np.log(_smooth(view, metric).max() / view.early(metric))),
        LOG,
    )


def diagnostic_late(metric: str, quantity: str) -> Estimand:
    """Return the mean of a diagnostic over the last quarter."""
    unit = REWARD_UNIT if metric.startswith("held_out") else ""
    return Estimand(f"{quantity}, last quarter", lambda view: view.late_diagnostic(metric), unit)


def diagnostic_late_log(metric: str, quantity: str, floor: float = 0.0) -> Estimand:
    """Return the log of the mean of a diagnostic over the last quarter, at least the log of `floor`.

    Without a floor a few runs in which the quantity vanishes decide a mean of logarithms.
    """
    text = f"log of {quantity}, {f'at least {floor:g}, ' if floor else ''}last quarter"
    return Estimand(text, lambda view: np.log(max(view.late_diagnostic(metric), floor)), LOG)


def diagnostic_late_ratio(metric: str, reference: str, quantity: str) -> Estimand:
    """Return the logarithm of the ratio of two diagnostics, each averaged over the last quarter."""
    return Estimand(
        f"log of {quantity}, last quarter",
        lambda view: np.log(view.late_diagnostic(metric) / view.late_diagnostic(reference)),
        LOG,
    )


def share_higher(group: str, engine: str) -> Estimand:
    """Return the fraction of `rare` or `common` tokens of an engine at which pi_train > pi_infer.

    Equal ones count half. Tokens of all diagnostics of a run together.
    """
    within, counted = {"rare": "< 0.01", "common": "> 0.9"}[group], f"{group}_{engine}"

    def of(view: View) -> float:
        if counted not in view.diagnostics:
            return np.nan
        higher, tokens = (float(view.diagnostics[name].sum()) for name in (f"{counted}_higher", counted))
        return higher / tokens if tokens else np.nan

    text = f"share of tokens with pi_train > pi_infer at pi_{engine} {within}, whole run"
    return Estimand(text, of, "fraction of tokens")


def detrended_correlation(one: str, other: str, quantity: str) -> Estimand:
    """Return Spearman's correlation of two diagnostics, given the step: of linearly detrended ranks."""

    def of(view: View) -> float:
        step, first, second = (view.diagnostic(name) for name in ("step", one, other))
        if not len(first) == len(second) == len(step) or len(step) < 4:
            return np.nan
        ranks = [np.asarray(pd.Series(curve).rank(), float) for curve in (first, second, step)]
        first, second = (curve - np.polyval(np.polyfit(ranks[2], curve, 1), ranks[2]) for curve in ranks[:2])
        return float(np.corrcoef(first, second)[0, 1])

    return Estimand(f"partial rank correlation over the run, given the step, of {quantity}", of, RANKS)


def _both_engines(view: View) -> float:
    return float(np.mean([view.late_diagnostic(name) for name in ("held_out_infer", "held_out_train")]))


def _peak_of_both_engines(view: View) -> float:
    curves = [view.diagnostic(name) for name in ("held_out_infer", "held_out_train")]
    return float(np.mean(curves, axis=0).max()) if all(map(len, curves)) else np.nan


def _final(view: View) -> float:
    rewards = _both_engines(view)
    return REWARD(view) if np.isnan(rewards) else rewards


def diagnostic_range(metric: str, quantity: str) -> Estimand:
    """Return the log of the largest over the smallest value of a diagnostic."""

    def of(view: View) -> float:
        curve = view.diagnostic(metric)
        return float(np.log(curve.max() / curve.min())) if len(curve) else np.nan

    return Estimand(f"log of largest over smallest {quantity}", of, LOG)


def _smooth(view: View, metric: str = "reward") -> np.ndarray:
    curve: Any = pd.Series(view.curve(metric))
    return np.asarray(curve.rolling(PEAK, min_periods=1).mean(), float)


REWARD = Estimand(
    "reward, last quarter", lambda view: 0.0 if view.diverged else view.late("reward"), REWARD_UNIT
)
REWARD_CHANGE = change("reward", "the reward")
HELD_OUT_REWARD = Estimand("held-out reward, mean of both engines, last quarter", _both_engines, REWARD_UNIT)
FINAL_REWARD = Estimand(
    "held-out reward, mean of both engines, last quarter (sampled reward if not recorded)",
    _final,
    REWARD_UNIT,
)
PEAK_HELD_OUT = Estimand(
    "held-out reward, mean of both engines, highest of the run", _peak_of_both_engines, REWARD_UNIT
)
PEAK_REWARD = Estimand("reward, best 50 steps", lambda view: float(_smooth(view).max()), REWARD_UNIT)
MISMATCH = late_log("rms_log_rho", "RMS log rho")
FIRST_MISMATCH = Estimand(
    "log of RMS log rho, first tenth", lambda view: float(np.log(view.early("rms_log_rho"))), LOG
)
GROWTH = growth("rms_log_rho", "RMS log rho")
GROWTH_AFTER_FORK = Estimand(
    "log growth of RMS log rho, last quarter against the first chunk after the fork",
    lambda view: float(np.log(view.late("rms_log_rho") / view.curve("rms_log_rho")[0])),
    LOG,
)
GROWTH_LPD = growth("abs_seq_log_ratio", "abs_seq_log_ratio")
GROWTH_D = growth("discrepancy", "the discrepancy d")
ENTROPY = late("entropy", "entropy")
LOG_ENTROPY = late_log("entropy", "entropy")
ENTROPY_GROWTH = growth("entropy", "entropy")
WIDEST = Estimand("largest std rho of any chunk", lambda view: float(view.curve("std_rho").max()))
RARE_RHO = Estimand(
    "mean rho - 1 at pi_train < 0.01, last quarter", lambda v: v.mean_of_bins("mean_rho", 0, RARE, True) - 1
)
RARE_DRIFT = Estimand(
    "change of mean rho at pi_train < 0.01",
    lambda v: v.mean_of_bins("mean_rho", 0, RARE, True) - v.mean_of_bins("mean_rho", 0, RARE, False),
)
RARE_STD_RHO = Estimand(
    "log of RMS log rho at pi_train < 0.01 over that at > 0.5",
    lambda v: np.log(
        v.mean_of_bins("rms_log_rho", 0, RARE, True) / v.mean_of_bins("rms_log_rho", COMMON, 1, True)
    ),
    LOG,
)
FROM_X = Estimand(
    "|log d| against the first tenth, last quarter",
    lambda v: abs(np.log(v.late("discrepancy") / v.early("discrepancy"))),
    LOG,
)


def _mean(rows: RunRows, metric: str, chosen: np.ndarray) -> float:
    if metric not in rows:  # not recorded, as in smoke mode
        return np.nan
    values = np.asarray(rows[metric], float)[chosen]
    return float(values.mean()) if len(values) else np.nan


def _rank_runs(one: np.ndarray, other: np.ndarray) -> float:
    if len(one) != len(other):
        return np.nan
    return float(pd.Series(one).corr(pd.Series(other), method="spearman"))


class Views:
    """All runs of an experiment's results, by arm, initial policy and seed."""

    def __init__(self, results: Results | Tables):
        """Open the tables; those that an experiment does not have are empty."""
        self.results = results

    def of_policies(self, policies: Collection[str]) -> "Views":
        """Return the runs from these initial policies."""
        views = Views(self.results)
        views.arms = {
            arm: {key: view for key, view in runs.items() if key[0] in policies}
            for arm, runs in self.arms.items()
        }
        return views

    @cached_property
    def arms(self) -> dict[str, dict[tuple[str, int], View]]:
        """The runs of every arm by (initial policy, seed)."""
        tables = {name: self._by_run(name) for name in ("chunks", "bins", "changes", "diagnostics")}
        arms: dict[str, dict[tuple[str, int], View]] = {}
        for row in self.results.table("runs").to_dict("records"):
            parts = {name: table.get(row["run"], NO_ROWS) for name, table in tables.items()}
            view = View(int(row["steps"]), row["status"] == "diverged", **parts)
            arms.setdefault(row["arm"], {})[row["initial_policy"], int(row["seed"])] = view
        return arms

    def _by_run(self, name: str) -> dict[str, RunRows]:
        if name not in self.results.table_names:
            return {}
        table = self.results.table(name)
        columns = {str(column): table[column].to_numpy() for column in table.columns}
        return {str(run): RunRows(columns, chosen) for run, chosen in table.groupby("run").indices.items()}
