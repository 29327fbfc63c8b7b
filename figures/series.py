"""Curves and ends of runs from the tables `runs` and `chunks`, by arm and initial policy.

Seeds of one initial policy are averaged. Arms are compared on the initial policies that all arms of a
figure have.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from simlab.core.results import Results
from simlab.studies.estimands import Estimand, Views

RENAMED = {
    "the flagship's engines": "FP8 range, 2 bits, truncated",
    "H100, 25 and 13 bits": "H100 with 25 and with 13 bits",
    "E4M3": "E4M3, no correction",
    "2 and 1 bits": "2 and 1 bits, no correction",
}
"""Labels of stored arms that have none or an unclear one."""
WINDOW = 0.1
"""Part of a run in the moving average of a curve."""
Estimate = Callable[[Results], pd.Series]
"""Map results to a series of numbers, indexed by arm and initial policy."""


def read_labels(results: Results) -> dict[str, str]:
    """Return the label of each arm; its name if the table has no labels."""
    runs: Any = results.table("runs")
    labels = zip(runs["arm"], runs.get("label", runs["arm"]), strict=True)
    return {str(arm): str(RENAMED.get(label, label)) for arm, label in labels}


def join_runs(results: Results, table: str, columns: Sequence[str]) -> pd.DataFrame:
    """Return `table` with the named columns of `runs`, sorted by run and step."""
    runs: Any = results.table("runs")[["run", *columns]]
    return results.table(table).merge(runs, on="run").sort_values(["run", "step"])


def measure(estimand: Estimand) -> Estimate:
    """Estimate what a criterion of the board measures; an arm without a number is left out."""

    def estimate(results: Results) -> pd.Series:
        runs = [
            {"arm": arm, "initial_policy": policy, "value": estimand(view)}
            for arm, views in Views(results).arms.items()
            for (policy, _), view in views.items()
        ]
        values: Any = pd.DataFrame(runs)
        return values.groupby(["arm", "initial_policy"])["value"].mean().dropna()

    return estimate


def curves(
    results: Results, arms: Sequence[str], metrics: Sequence[str], table: str = "chunks"
) -> dict[str, pd.DataFrame]:
    """Return the curves [step, initial policy] of those of `arms` that the results hold.

    A curve is the mean of `metrics`. An arm without one of them has no curve.
    """
    rows: Any = join_runs(results, table, ("arm", "initial_policy")).reindex(
        columns=["arm", "initial_policy", "step", *metrics]
    )
    rows = rows.dropna().assign(value=lambda found: found[list(metrics)].mean(axis=1))
    by_arm: dict[str, Any] = {}
    for arm, own in rows.groupby("arm"):
        by_arm[str(arm)] = own.pivot_table(index="step", columns="initial_policy", values="value")
    by_arm = {arm: by_arm[arm] for arm in arms if arm in by_arm}
    shared = set.intersection(*(set(curve.columns) for curve in by_arm.values())) if by_arm else set()
    return {arm: curve[sorted(shared)] if shared else curve for arm, curve in by_arm.items()}


def subtract(by_arm: Mapping[str, pd.DataFrame], reference: str) -> dict[str, pd.DataFrame]:
    """Return the curves of the other arms minus that of `reference`, by initial policy; none without it."""
    if reference not in by_arm:
        return {}
    return {arm: curve - by_arm[reference] for arm, curve in by_arm.items() if arm != reference}


def smooth(curve: pd.Series, average: str = "mean") -> pd.Series:
    """Return the centered moving mean or median of a series; NaN at the ends, where no window is complete."""
    half = max(0, int(WINDOW * len(curve) - 1) // 2)
    return getattr(curve.rolling(2 * half + 1, center=True), average)()


def pool_tokens(rows: pd.DataFrame, column: str, by: Sequence[str]) -> pd.Series:
    """Return the mean of a column of `bins` by `by`; each token counts once."""
    weighted: Any = (
        rows.assign(total=rows[column] * rows["tokens"]).groupby(list(by))[["total", "tokens"]].sum()
    )
    return weighted["total"] / weighted["tokens"]
