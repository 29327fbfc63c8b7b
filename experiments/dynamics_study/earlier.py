"""Going on from an earlier result: its rows stay, and only the runs that it lacks are made.

Runs take hours and their store may be lost; the tables of an experiment are kept.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from experiments.campaign import ARMS
from experiments.dynamics_study.runs import CHUNK, PER_RUN
from experiments.regime import BASE
from simlab.core.experiment import Run
from simlab.core.manifest import processor
from simlab.core.results import Results
from simlab.studies.estimands import Tables

PLACE = ["arm", "start", "seed"]
NOTED = ("name", "commit", "dirty", "finished", "versions", "device", "xla_flags", "timings", "config")
"""What the manifest keeps of that of the earlier result."""


def same_arms(result: Results) -> None:
    """Raise `ValueError` for a result whose runs are not those that its arms would be now.

    A result from before manifests told what its arms were is only asked for its first policies.
    """
    then = result.manifest["config"]
    if "base" not in then:
        raise ValueError(f"{result.folder}: {result.manifest['name']} has no arms to go on from")
    now = {"base": BASE, "chunk": CHUNK, "arms": {name: asdict(ARMS[name]) for name in ARMS}}
    for name in ("base", "chunk"):
        if then.get(name) != _plain(now[name]):
            raise ValueError(f"{result.folder}: made with {name} {then.get(name)}, which is {now[name]} now")
    for arm, described in _described(then).items():
        if arm in ARMS and described != _plain(now["arms"][arm]):
            raise ValueError(f"{result.folder}: {arm!r} was {described}, and is {now['arms'][arm]} now")
    runs = result.table("runs")
    elsewhere = any(result.manifest["device"].get(name) != fact for name, fact in processor().items())
    for arm, start in sorted(set(zip(runs["arm"], runs["start"], strict=True))):
        if arm in ARMS and start not in ARMS[arm].starts:
            raise ValueError(f"{result.folder}: {arm!r} began from {start!r}, and does not now")
        # A seed teaches another policy on another processor; a file is the same everywhere.
        if elsewhere and arm in ARMS and not isinstance(ARMS[arm].starts[start], str):
            raise ValueError(
                f"{result.folder}: {start!r} was taught on another processor, and is another here"
            )


def begun(run: Run, arms: Sequence[str], watched: Collection[str] = ()) -> Tables:
    """Return the rows of `arms` that `run` goes on from, none for a fresh one; its manifest says whose.

    The result may be another experiment's, which looks at other things: `watched` arms are then made again,
    since watching repeats them, as are those that nobody watched.
    """
    if run.after is None:
        return Tables({})
    manifest = run.after.manifest
    run.configure(after={name: manifest[name] for name in NOTED})
    tables = {name: run.after.table(name) for name in PER_RUN if name in run.after.table_names}
    if manifest["name"] != run.name:
        tables.pop("watched", None)
    runs = tables["runs"]
    seen = runs["run"].isin(tables["watched"]["run"]) if "watched" in tables else False
    kept = runs["run"][runs["arm"].isin(arms) & (~runs["arm"].isin(list(watched)) | seen)]
    return Tables({name: table[table["run"].isin(list(kept))] for name, table in tables.items()})


def lacking(tables: Tables, arms: Sequence[str], seed: int, starts: int) -> list[str]:
    """Return those of `arms` that have fewer than `starts` runs with this seed."""
    if not tables.tables:
        return list(arms)
    runs = tables.table("runs")
    made = runs[runs["seed"] == seed]["arm"].value_counts()
    return [arm for arm in arms if made.get(arm, 0) < starts]


def joined(one: Tables, other: Tables) -> Tables:
    """Return both; of a run that both have, that of `one`."""
    if not one.tables:
        return other
    runs: Any = other.table("runs")
    there = pd.MultiIndex.from_frame(one.table("runs")[PLACE])
    again = runs["run"][pd.MultiIndex.from_frame(runs[PLACE]).isin(there)]
    fresh = {name: table[~table["run"].isin(again)] for name, table in other.tables.items()}
    both = {name: [each[name] for each in (one.tables, fresh) if name in each] for name in PER_RUN}
    return Tables({name: pd.concat(parts, ignore_index=True) for name, parts in both.items() if parts})


def _described(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the arms of a result were, those too that it took from the result before it."""
    before = config.get("after")
    return (_described(before["config"]) if before else {}) | config.get("arms", {})


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
