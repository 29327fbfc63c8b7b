"""Curves and ends of runs from the tables `runs` and `chunks`, by arm and initial policy.

Seeds of one initial policy are averaged. Arms are compared on the initial policies that all arms of a
figure have.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from simlab.core.results import Results

SMOOTH = 5
"""Chunks in the moving average of a curve."""
CHUNK = 10
"""Steps in a chunk."""

Estimate = Callable[[Results], Any]
"""Map results to a series of numbers, indexed by arm and initial policy."""


def read_labels(results: Results) -> dict[str, str]:
    """Return the label of each arm; its name if the table has no labels."""
    runs: Any = results.table("runs")
    return dict(zip(runs["arm"], runs.get("label", runs["arm"]), strict=True))


def join_runs(results: Results, table: str, columns: Sequence[str]) -> Any:
    """Return `table` with the named columns of `runs`, sorted by run and step."""
    runs: Any = results.table("runs")[["run", *columns]]
    return results.table(table).merge(runs, on="run").sort_values(["run", "step"])


def last_quarter(rows: Any) -> Any:
    """Return which rows lie in the last quarter of their run; a shorter run contributes its last row."""
    last = rows.groupby("run")["step"].transform("max")
    return rows["step"] >= np.minimum(0.75 * rows["steps"], last)


def first_tenth(rows: Any) -> Any:
    """Return which rows lie in the first tenth of their run."""
    return rows["step"] < 0.1 * rows["steps"]


def mean_within(
    results: Results, metric: str, table: str = "chunks", period: Callable[[Any], Any] = last_quarter
) -> Any:
    """Return the mean of a metric over a period of the runs, by arm and initial policy.

    Empty if `table` lacks the metric, as in smoke mode.
    """
    rows = join_runs(results, table, ("arm", "initial_policy", "steps")).reindex(
        columns=["run", "arm", "initial_policy", "steps", "step", metric]
    )
    return average_seeds(rows[period(rows)], metric)


def average_seeds(rows: Any, metric: str) -> Any:
    """Return the mean of a metric by arm and initial policy; each run counts once."""
    by_run = rows.groupby(["arm", "initial_policy", "run"])[metric].mean()
    return by_run.groupby(["arm", "initial_policy"]).mean()


def final(metric: str, table: str = "chunks") -> Estimate:
    """Estimate the mean of a metric over the last quarter of the runs."""
    return lambda results: mean_within(results, metric, table)


def best(metric: str) -> Estimate:
    """Estimate the largest mean of a metric over 5 consecutive chunks."""

    def estimate(results: Results) -> Any:
        rows = join_runs(results, "chunks", ("arm", "initial_policy"))
        smooth = rows.groupby("run")[metric].rolling(SMOOTH, min_periods=1).mean()
        rows = rows.assign(best=smooth.to_numpy())
        return average_seeds(
            rows.groupby(["arm", "initial_policy", "run"], as_index=False)["best"].max(), "best"
        )

    return estimate


def fall(metric: str) -> Estimate:
    """Estimate the final mean of a metric minus its best."""
    return lambda results: final(metric)(results) - best(metric)(results)


def steps_to_gain(gain: float) -> Estimate:
    """Estimate the steps until the smoothed reward is `gain` above its first 2 chunks; all steps if never."""

    def count_steps(curve: Any) -> float:
        smooth = pd.Series(curve["reward"]).rolling(SMOOTH, min_periods=1).mean()
        reached = curve["step"][smooth >= curve["reward"][:2].mean() + gain]
        return float(reached.min() if len(reached) else curve["step"].max()) + CHUNK

    def estimate(results: Results) -> Any:
        runs = join_runs(results, "chunks", ("arm", "initial_policy")).groupby(
            ["arm", "initial_policy", "run"]
        )
        return runs[["step", "reward"]].apply(count_steps).groupby(["arm", "initial_policy"]).mean()

    return estimate


def curves(results: Results, arms: Sequence[str], metric: str, table: str = "chunks") -> dict[str, Any]:
    """Return the curves [step, initial policy] of those of `arms` that the results hold.

    `chunks` are smoothed over 5 of them. An arm without the metric has no curve.
    """
    rows = join_runs(results, table, ("arm", "initial_policy")).reindex(
        columns=["arm", "initial_policy", "step", metric]
    )
    found: dict[str, Any] = {}
    for arm, own in rows.dropna().groupby("arm"):
        curve = own.pivot_table(index="step", columns="initial_policy", values=metric)
        smooth = curve.rolling(SMOOTH, min_periods=1, center=True).mean()
        found[str(arm)] = smooth if table == "chunks" else curve
    found = {arm: found[arm] for arm in arms if arm in found}
    shared = set.intersection(*(set(curve.columns) for curve in found.values())) if found else set()
    return {arm: curve[sorted(shared)] if shared else curve for arm, curve in found.items()}


def bands(found: Mapping[str, Any], log: bool) -> dict[str, Any]:
    """Return the columns `middle`, `low` and `high` over steps of every arm.

    A band is one standard error over initial policies, after removing the effect of the initial policy that
    the arms share at a step. Of several arms, one that has a step to itself has no band there. On logarithmic
    axes means are geometric, unless there are zeros.

    Reference: Cousineau 2005, Morey 2008.
    """
    if not found:
        return {}
    joint: Any = pd.concat(found, axis=1, names=["arm", "initial_policy"])
    geometric = log and (joint.min(axis=None) > 0)
    if geometric:
        joint = np.log(joint)
    by_start = joint.T.groupby(level="initial_policy").mean().T
    arms = (joint.T.groupby(level="arm").count() > 0).sum()
    common = by_start.sub(by_start.mean(axis=1), axis=0)
    factor = np.sqrt(arms / (arms - 1).where(arms > 1))
    drawn = {}
    for arm in found:
        middle, error = joint[arm].mean(axis=1), joint[arm].sem(axis=1)
        if len(found) > 1:
            error = np.fmin(error, (joint[arm] - common).sem(axis=1) * factor).where(arms > 1)
        error = error.fillna(0)
        band = pd.DataFrame({"middle": middle, "low": middle - error, "high": middle + error}).dropna()
        drawn[arm] = np.exp(band) if geometric else band
    return drawn


def pool_tokens(rows: Any, column: str, by: Sequence[str]) -> Any:
    """Return the mean of a column of `bins` by `by`; each token counts once."""
    weighted = rows.assign(total=rows[column] * rows["tokens"]).groupby(list(by))[["total", "tokens"]].sum()
    return weighted["total"] / weighted["tokens"]
