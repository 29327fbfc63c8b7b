"""Curves and ends of runs from the tables `runs` and `chunks`, by arm and initial policy.

Seeds of one initial policy are averaged. Arms are compared on the initial policies that all arms of a
figure have.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from simlab.core.results import Results
from simlab.studies.estimands import Estimand, Views

RENAMED = {
    "the flagship's engines": "FP8 range, 2 bits, truncated",
    "H100, 25 and 13 bits": "H100 with 25 and with 13 bits",
}
"""Labels of stored arms that have none or an unclear one."""
Estimate = Callable[[Results], Any]
"""Map results to a series of numbers, indexed by arm and initial policy."""


def read_labels(results: Results) -> dict[str, str]:
    """Return the label of each arm; its name if the table has no labels."""
    runs: Any = results.table("runs")
    labels = zip(runs["arm"], runs.get("label", runs["arm"]), strict=True)
    return {str(arm): str(RENAMED.get(label, label)) for arm, label in labels}


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
    by_run = rows[period(rows)].groupby(["arm", "initial_policy", "run"])[metric].mean()
    return by_run.groupby(["arm", "initial_policy"]).mean()


def final(metric: str, table: str = "chunks") -> Estimate:
    """Estimate the mean of a metric over the last quarter of the runs."""
    return lambda results: mean_within(results, metric, table)


def measure(estimand: Estimand) -> Estimate:
    """Estimate what a criterion of the board measures."""

    def estimate(results: Results) -> Any:
        runs = [
            {"arm": arm, "initial_policy": policy, "value": estimand(view)}
            for arm, views in Views(results).arms.items()
            for (policy, _), view in views.items()
        ]
        return pd.DataFrame(runs).groupby(["arm", "initial_policy"])["value"].mean()

    return estimate


def curves(results: Results, arms: Sequence[str], metric: str, table: str = "chunks") -> dict[str, Any]:
    """Return the curves [step, initial policy] of those of `arms` that the results hold.

    An arm without the metric has no curve.
    """
    rows = join_runs(results, table, ("arm", "initial_policy")).reindex(
        columns=["arm", "initial_policy", "step", metric]
    )
    by_arm: dict[str, Any] = {}
    for arm, own in rows.dropna().groupby("arm"):
        by_arm[str(arm)] = own.pivot_table(index="step", columns="initial_policy", values=metric)
    by_arm = {arm: by_arm[arm] for arm in arms if arm in by_arm}
    shared = set.intersection(*(set(curve.columns) for curve in by_arm.values())) if by_arm else set()
    return {arm: curve[sorted(shared)] if shared else curve for arm, curve in by_arm.items()}


def pool_tokens(rows: Any, column: str, by: Sequence[str]) -> Any:
    """Return the mean of a column of `bins` by `by`; each token counts once."""
    weighted = rows.assign(total=rows[column] * rows["tokens"]).groupby(list(by))[["total", "tokens"]].sum()
    return weighted["total"] / weighted["tokens"]
