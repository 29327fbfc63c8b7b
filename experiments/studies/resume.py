"""Resume from an earlier result: keep its rows and run only what it lacks.

Runs take hours and their cache may be lost; the tables of an experiment remain.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.regimes import BASE
from experiments.studies.runs import BLOCK, CHUNK, PER_RUN
from simlab.core.manifest import processor
from simlab.core.results import Results
from simlab.studies.arms import Arm
from simlab.studies.estimands import Tables
from simlab.studies.experiment import ExperimentContext
from simlab.studies.provenance import recorded_arms

RUN_KEY = ["arm", "initial_policy", "seed"]
NOTED = (
    *("name", "commit", "dirty", "finished", "versions", "device", "xla_flags", "timings", "config"),
    "migrated_by",
)
"""Fields of the earlier manifest that the new manifest records if they are there."""


def check_arms(result: Results, arms: Mapping[str, Arm]) -> None:
    """Raise `ValueError` for a result in which one of `arms`, by id, is defined differently.

    A result whose manifest does not describe its arms is only checked for its initial policies.
    """
    then = result.manifest["config"]
    if "base" not in then:
        raise ValueError(
            f"{result.folder}: {result.manifest['name']} has no arms; a result without arms cannot be resumed"
        )
    for name, now in {"base": _plain(BASE), "chunk": CHUNK}.items():
        if then.get(name) != now:
            raise ValueError(f"{result.folder}: made with {name} {then.get(name)}, which is {now} now")
    for name, described in recorded_arms(then).items():
        if name in arms and arms[name].differs_from(described):
            raise ValueError(f"{result.folder}: {name!r} was {described}, and is {arms[name].recorded} now")
    runs = result.table("runs")
    elsewhere = any(result.manifest["device"].get(name) != fact for name, fact in processor().items())
    for name, policy in sorted(set(zip(runs["arm"], runs["initial_policy"], strict=True))):
        if name not in arms:
            continue
        if policy not in arms[name].initial_policies:
            raise ValueError(f"{result.folder}: {name!r} has no initial policy {policy!r} now")
        # A policy trained from a seed differs between processors; a file is the same everywhere.
        if elsewhere and not isinstance(arms[name].initial_policies[policy], str):
            raise ValueError(
                f"{result.folder}: initial policy {policy!r} was trained on another CPU and cannot be "
                "reproduced here. Pass a saved checkpoint."
            )


def load_resumed(run: ExperimentContext, arms: Sequence[Arm], diagnosed: Collection[Arm] = ()) -> Tables:
    """Return the rows of `arms` in the result that `run` resumes from; none without such a result.

    Another experiment may record other diagnostics: `diagnosed` arms are then run again, as are those without
    diagnostics.
    """
    if run.resume_from is None:
        return Tables({})
    manifest = run.resume_from.manifest
    run.configure(resumed_from={name: fact for name, fact in manifest.items() if name in NOTED})
    tables = {name: run.resume_from.table(name) for name in PER_RUN if name in run.resume_from.table_names}
    if manifest["name"] != run.name:
        tables.pop("diagnostics", None)
    runs = tables["runs"]
    seen = runs["run"].isin(tables["diagnostics"]["run"]) if "diagnostics" in tables else False
    wanted, observed = ([arm.id for arm in each] for each in (arms, diagnosed))
    complete = runs["run"][runs["arm"].isin(wanted) & (~runs["arm"].isin(observed) | seen)]
    return Tables({name: table[table["run"].isin(list(complete))] for name, table in tables.items()})


def missing_arms(tables: Tables, arms: Sequence[Arm], block: int) -> list[Arm]:
    """Return those of `arms` that lack a run from an initial policy of this block."""
    if not tables.tables:
        return list(arms)
    made = tables.table("runs").groupby("arm")["initial_policy"].nunique()
    return [arm for arm in arms if made.get(arm.id, 0) < BLOCK * (block + 1)]


def merge_tables(one: Tables, other: Tables) -> Tables:
    """Return the rows of both; of a run in both, those of `one`."""
    if not one.tables:
        return other
    runs: Any = other.table("runs")
    there = pd.MultiIndex.from_frame(one.table("runs")[RUN_KEY])
    again = runs["run"][pd.MultiIndex.from_frame(runs[RUN_KEY]).isin(there)]
    fresh = {name: table[~table["run"].isin(again)] for name, table in other.tables.items()}
    both = {name: [each[name] for each in (one.tables, fresh) if name in each] for name in PER_RUN}
    return Tables({name: pd.concat(parts, ignore_index=True) for name, parts in both.items() if parts})


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
