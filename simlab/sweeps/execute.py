"""The work loop: claim runs, compute a slice, write them; the same in this process and in a worker."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simlab.sweeps.config import columns
from simlab.sweeps.plan import Group, Plan, PlannedRun
from simlab.sweeps.program import Lane, Metrics, compiled, run_slice, stacked, swept_recipe
from simlab.sweeps.start import first_params
from simlab.sweeps.store import Store
from simlab.sweeps.tables import diverged_at, run_tables

LIVE = ("reward", "std_rho")
"""What is shown while a sweep runs: reward and mismatch."""

Report = Callable[[dict[str, Any]], None]
POLL_SECONDS = 0.3


def work(plan: Plan, store: Store, report: Report, first: int = 0) -> None:
    """Compute the missing runs of `plan` that nobody else computes, until none is missing.

    `report` gets an event after every chunk. Processes that begin with different groups (`first`) compile
    different programs at the same time.
    """
    start = first % max(1, len(plan.groups))
    order = plan.groups[start:] + plan.groups[:start]
    while left := [group for group in order if store.missing(run.key for run in group.runs)]:
        if not any(_work_on(group, plan.width, store, report) for group in left):
            # Others have claimed what is left; they may yet leave it.
            time.sleep(POLL_SECONDS)


def _work_on(group: Group, width: int, store: Store, report: Report) -> bool:
    """Compute what can be claimed of a group; return whether there was anything."""
    worked = False
    while claimed := _claim(group, store, width):
        _compute(claimed, group.steps, width, store, report)
        worked = True
    return worked


def lane_of(run: PlannedRun, store: Store) -> Lane:
    """Return the run as a lane of a slice; trains its warm start if that is a recipe not yet followed."""
    recipe = swept_recipe(run.config)
    params = first_params(
        run.config.warm_start, recipe.task, recipe.model, run.config.seed, store.folder / "warm_starts"
    )
    return Lane(recipe, params, run.config.seed)


def train_warm_starts(plan: Plan, store: Store) -> None:
    """Follow every recipe of a warm start once, before several processes would do it at the same time."""
    runs = [run for group in plan.groups for run in group.runs]
    recipes = {
        repr([config.warm_start, config.as_dict()["task"], config.as_dict()["model"]]): run
        for run in runs
        if (config := run.config).warm_start is not None and "sha256" not in config.warm_start
    }
    for run in recipes.values():
        lane_of(run, store)


def calibrate(group: Group, width: int, store: Store) -> dict[str, float]:
    """Compile the program of a group and time one step of a full slice of it, in seconds."""
    lanes = [lane_of(run, store) for run in group.runs[:width]]
    program = compiled(stacked(lanes, width), group.steps)
    start = time.perf_counter()
    done, _ = next(run_slice(lanes, width, group.steps))
    return {"compile": program.seconds, "step": (time.perf_counter() - start) / done, "cost": group.cost}


def _claim(group: Group, store: Store, width: int) -> list[PlannedRun]:
    by_key = {run.key: run for run in group.runs}
    return [by_key[key] for key in store.claim(store.missing(by_key), width)]


def _compute(runs: Sequence[PlannedRun], steps: int, width: int, store: Store, report: Report) -> None:
    """Compute one claimed slice, write its runs and give up the claims."""
    began = time.perf_counter()
    try:
        _write_slice(runs, steps, width, store, report)
    finally:
        store.release(run.key for run in runs)
    report({"event": "slice", "runs": [run.key for run in runs], "seconds": time.perf_counter() - began})


def _write_slice(runs: Sequence[PlannedRun], steps: int, width: int, store: Store, report: Report) -> None:
    keys = [run.key for run in runs]
    lanes = [lane_of(run, store) for run in runs]
    metrics = slice_metrics(
        lanes, width, steps, lambda live: report({"event": "chunk", "runs": keys, **live})
    )
    write_runs(runs, metrics, store)


def slice_metrics(lanes: Sequence[Lane], width: int, steps: int, report: Report) -> Metrics:
    """Return the metrics [lanes, steps, ...] of one slice; ends early where every lane has diverged.

    `report` gets `step`, how many are done, and the `LIVE` metrics of each chunk.
    """
    parts: list[Metrics] = []
    for done, metrics in run_slice(lanes, width, steps):
        parts.append(metrics)
        report({"step": done} | {name: metrics[name].tolist() for name in LIVE if name in metrics})
        if all(
            diverged_at({name: values[i] for name, values in metrics.items()}) >= 0 for i in range(len(lanes))
        ):
            break
    return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}


def write_runs(runs: Sequence[PlannedRun], metrics: Metrics, store: Store) -> None:
    """Write the runs of a slice."""
    for lane, run in enumerate(runs):
        of_lane = {name: values[lane] for name, values in metrics.items()}
        store.write(run.key, run_tables(run.key, columns(run.config), of_lane))
