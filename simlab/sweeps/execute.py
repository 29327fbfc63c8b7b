"""The work loop: acquire runs, compute a slice, write them; the same in this process and in a worker."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from simlab.core.json_value import Json
from simlab.sweeps.config import columns
from simlab.sweeps.plan import CompileGroup, Plan, PlannedRun
from simlab.sweeps.program import (
    Lane,
    chunk_length,
    compiled,
    stacked,
    swept_recipe,
)
from simlab.sweeps.start import first_params
from simlab.sweeps.store import Store
from simlab.sweeps.tables import diverged_at, run_tables
from simlab.training.checkpoints import Arrays, Progress, named_arrays
from simlab.training.loop import CHECKPOINT_SECONDS, Chunk, HostMetrics, join_metrics, train

LIVE = ("reward", "std_rho")
"""What is shown while a sweep runs: reward and mismatch."""

LANES = (0, 0)
"""The axes of recipe and state over the runs of a slice."""

Report = Callable[[dict[str, Json]], None]
POLL_SECONDS = 0.3


def work(plan: Plan, store: Store, report: Report, first: int = 0, every: float = CHECKPOINT_SECONDS) -> None:
    """Compute the missing runs of `plan` that nobody else computes, until none is missing.

    `report` gets an event after every chunk. Unfinished runs are kept every so many seconds, at the end of a
    chunk. Processes that begin with different groups (`first`) compile different programs at the same time.
    """
    start = first % max(1, len(plan.groups))
    order = plan.groups[start:] + plan.groups[:start]
    while left := [group for group in order if store.missing(run.key for run in group.runs)]:
        if not any(_work_on(group, plan.width, store, report, every) for group in left):
            # Others have acquired what is left; they may yet leave it.
            time.sleep(POLL_SECONDS)


def _work_on(group: CompileGroup, width: int, store: Store, report: Report, every: float) -> bool:
    """Compute what can be acquired of a group; return whether there was anything."""
    worked = False
    while acquired := _acquire(group, store, width):
        _compute(acquired, group.steps, width, store, report, every)
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


def _acquire(group: CompileGroup, store: Store, width: int) -> list[PlannedRun]:
    by_key = {run.key: run for run in group.runs}
    return [by_key[key] for key in store.acquire(store.missing(by_key), width)]


def _compute(
    runs: Sequence[PlannedRun], steps: int, width: int, store: Store, report: Report, every: float
) -> None:
    """Compute one acquired slice, write its runs and release them."""
    began, keys = time.perf_counter(), [run.key for run in runs]
    try:
        lanes = begun(runs, store, report)
        while unfinished(lanes, steps):
            lanes = segment(lanes, width, steps, every, lambda live: report(chunk_event(keys, live)))
            if unfinished(lanes, steps):
                keep_lanes(runs, lanes, store)
        write_lanes(runs, lanes, store)
    finally:
        store.release(keys)
    report({"event": "slice", "runs": keys, "seconds": time.perf_counter() - began})


def chunk_event(keys: Sequence[str], live: Mapping[str, Json]) -> dict[str, Json]:
    """Return what a watcher reads of a chunk."""
    return {"event": "chunk", "runs": keys, **live}


def begun(runs: Sequence[PlannedRun], store: Store, report: Report) -> list[Lane]:
    """Return the runs as lanes, each as far as a sweep that was killed has brought it."""
    lanes = [replace(lane_of(run, store), progress=store.progress(run.key)) for run in runs]
    for run, lane in zip(runs, lanes, strict=True):
        if lane.progress is not None:
            report(chunk_event([run.key], _live([lane.made], [lane.progress.metrics])))
    return lanes


def unfinished(lanes: Sequence[Lane], steps: int) -> bool:
    """Return whether there is something left to compute of a slice."""
    return not all(
        lane.made >= steps or (lane.progress is not None and diverged_at(lane.progress.metrics) >= 0)
        for lane in lanes
    )


def segment(lanes: Sequence[Lane], width: int, steps: int, seconds: float, report: Report) -> list[Lane]:
    """Return the lanes `seconds` later, at the end of a chunk, or when nothing is left to compute.

    `report` gets the steps of each lane, how many are made, and the `LIVE` metrics of each chunk. A lane that
    had made more than others, or whose steps are not a multiple of the chunk, makes too many; they are cut.
    """
    end, chunk, first = time.monotonic() + seconds, chunk_length(steps), [lane.made for lane in lanes]

    def parts(metrics: HostMetrics, made: Sequence[int]) -> list[HostMetrics]:
        return [
            {name: values[i, : max(0, steps - before)] for name, values in metrics.items()}
            for i, before in enumerate(made)
        ]

    def watch(done: Chunk) -> bool:
        fresh = parts(done.metrics, [before + done.step - chunk for before in first])
        made = [min(steps, before + done.step) for before in first]
        report(_live(made, fresh))
        over = all(n == steps or diverged_at(part) >= 0 for n, part in zip(made, fresh, strict=True))
        return over or time.monotonic() >= end

    recipe, state = stacked(lanes, width)
    left = -(-(steps - min(first)) // chunk) * chunk
    program = compiled((recipe, state), steps)
    state, metrics = train(recipe, state, left, [watch], chunk=chunk, axes=LANES, advance=program.run)
    arrays, after = named_arrays(state), []
    for i, (lane, part) in enumerate(zip(lanes, parts(metrics, first), strict=True)):
        before = {} if lane.progress is None else dict(lane.progress.metrics)
        progress = Progress({place: a[i] for place, a in arrays.items()}, join_metrics([before, part]))
        after.append(replace(lane, progress=progress))
    return after


def _live(made: Sequence[int], parts: Sequence[Arrays]) -> dict[str, Json]:
    return {"step": list(made)} | {
        name: [part[name].tolist() for part in parts] for name in LIVE if name in parts[0]
    }


def keep_lanes(runs: Sequence[PlannedRun], lanes: Sequence[Lane], store: Store) -> None:
    """Keep the runs of a slice as far as they are."""
    for run, lane in zip(runs, lanes, strict=True):
        assert lane.progress is not None
        store.save_checkpoint(run.key, lane.progress)


def write_lanes(runs: Sequence[PlannedRun], lanes: Sequence[Lane], store: Store) -> None:
    """Write the runs of a slice."""
    for run, lane in zip(runs, lanes, strict=True):
        assert lane.progress is not None
        store.write(run.key, run_tables(run.key, columns(run.config), lane.progress.metrics))
