"""The tables of a sweep: the same bytes for the same runs; times are in the manifest only.

| table | one row per | columns |
|---|---|---|
| `runs` | run, in the order of the grid | `run` (its key), `arm`, `status` (`finished`, `diverged`, `dead`),
  `diverged_at` and `dead_since` (step from 0, -1 if it did not), `dead_because`, `steps_completed`, then
  every field of the config under its dotted path: `objective`, `objective.clip_low`, ... In
  `SweepResult.runs()` and `frame()` these columns have short names: `clip_low`. |
| `steps` | run and step | `run`, `step` from 0, then every scalar metric of the training step under its name,
  float32, as measured on the rollout of that step, before its update |
| `vectors` | run, step, metric and index | `run`, `step`, `metric`, `index`, `value`; the index of a
  `..._by_pi_train` metric is a bin, between `simlab.metrics.PROBABILITY_EDGES[index]` and the next edge |

A field that a run does not have (the `clip_low` of an objective without one) is empty in its row. A run that
diverges (one of `WATCHED` is not finite) keeps the step at which it did, and has no later rows. `dead_since`
defines which runs are dead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simlab.core.json_value import Json

# Not finite only when something broke; other metrics are NaN where there is nothing to average.
WATCHED = ("grad_norm", "entropy", "reward")
DEAD_BY = 5
DEAD_FRACTION = 0.25
DEAD_STEPS = 10
"""Fraction and number of last steps at zero from which on a run is dead; fewer may be chance."""
DEAD = {"grad_norm": "zero gradient", "reward": "zero reward"}
"""Metrics that are exactly zero for the rest of a dead run, and how the result reports it."""

OWN = ("run", "arm", "status", "diverged_at", "dead_since", "dead_because", "steps_completed")
"""Columns of `runs` before those of the config."""
Metrics = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class RunTables:
    """One finished run, ready to be written."""

    steps: dict[str, Json]
    vectors: dict[str, Json]
    record: dict[str, Json]


def diverged_at(metrics: Metrics) -> int:
    """Return the first step at which a watched metric [steps] is not finite, or -1."""
    broken = [~np.isfinite(metrics[name]) for name in WATCHED if name in metrics]
    where = np.flatnonzero(np.any(broken, axis=0)) if broken else np.array([], int)
    return int(where[0]) if len(where) else -1


def dead_since(metrics: Metrics) -> tuple[int, str]:
    """Return the step from which a run is dead and why, or (-1, "").

    A metric of `DEAD` must be zero to the end: from step `DEAD_BY` or earlier on and for `DEAD_BY` steps or
    more, or for the last `DEAD_FRACTION` of the run and `DEAD_STEPS` steps or more.
    """
    for name, why in DEAD.items():
        if name not in metrics:
            continue
        values = np.asarray(metrics[name])
        moving = np.flatnonzero(values != 0)
        since = int(moving[-1]) + 1 if len(moving) else 0
        zeros = len(values) - since
        is_early = since <= DEAD_BY and zeros >= DEAD_BY
        if is_early or zeros >= max(DEAD_STEPS, DEAD_FRACTION * len(values)):
            return since, why
    return -1, ""


def run_tables(key: str, columns: Mapping[str, Json], metrics: Metrics) -> RunTables:
    """Return the tables of a run from its metrics, each [steps, ...]."""
    first = diverged_at(metrics)
    made = first + 1 if first >= 0 else len(next(iter(metrics.values())))
    completed = {name: np.asarray(values)[:made] for name, values in sorted(metrics.items())}
    scalars = {name: values for name, values in completed.items() if values.ndim == 1}
    vectors = {name: values.reshape(made, -1) for name, values in completed.items() if values.ndim > 1}
    steps = {"run": [key] * made, "step": np.arange(made, dtype=np.int32)} | scalars
    since, why = dead_since(scalars) if first < 0 else (-1, "")
    record = {
        "run": key,
        "status": "diverged" if first >= 0 else "dead" if since >= 0 else "finished",
        "diverged_at": first,
        "dead_since": since,
        "dead_because": why,
        "steps_completed": made,
        "columns": dict(columns),
    }
    return RunTables(steps, _long(key, vectors), record)


def _long(key: str, vectors: Mapping[str, np.ndarray]) -> dict[str, Json]:
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("step", "metric", "index", "value")}
    for name, values in vectors.items():
        step, index = np.indices(values.shape, dtype=np.int32)
        parts["step"].append(step.ravel())
        parts["metric"].append(np.full(values.size, name, object))
        parts["index"].append(index.ravel())
        parts["value"].append(values.astype(np.float32).ravel())
    empty = {"step": np.int32, "metric": object, "index": np.int32, "value": np.float32}
    joined = {
        name: np.concatenate(arrays) if arrays else np.array([], empty[name])
        for name, arrays in parts.items()
    }
    return {"run": [key] * len(joined["step"])} | joined


def runs_table(records: Sequence[Mapping[str, Json]], arms: Sequence[str]) -> pd.DataFrame:
    """Return the `runs` table of these records, in their order."""
    rows = [{**record["columns"], **record, "arm": arm} for record, arm in zip(records, arms, strict=True)]
    names = dict.fromkeys((*OWN, *(name for record in records for name in record["columns"])))
    return pd.DataFrame({name: _one_kind([row.get(name) for row in rows]) for name in names})


def _one_kind(values: list[Json]) -> list[Json]:
    """Return a column of one type; if some values are numbers and others are not, all become text."""
    kinds = {type(value) for value in values if value is not None}
    if list in kinds or (len(kinds) > 1 and not kinds <= {int, float}):
        return [None if value is None else str(value) for value in values]
    return values
