"""The work loop: acquire runs, compute a batch, write them; the same in this process and in a worker."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from simlab.core.json_value import Json
from simlab.core.manifest import processor_family
from simlab.sweeps.compilation import compile_batch, forget_above
from simlab.sweeps.config import columns
from simlab.sweeps.memory import return_free_memory
from simlab.sweeps.plan import Plan, PlannedRun
from simlab.sweeps.program import BatchedRun, chunk_length, stack_members
from simlab.sweeps.result_cache import ResultCache
from simlab.sweeps.start import load_initial_params
from simlab.sweeps.tables import WATCHED, diverged_at, run_tables
from simlab.training.checkpoints import Arrays, UnfinishedRun, named_arrays
from simlab.training.loop import CHECKPOINT_SECONDS, Callback, ChunkMetrics, HostMetrics, join_metrics, train

LIVE = ("reward", "rms_log_rho")
"""The metrics that are shown while a sweep runs: reward and RMS log rho."""

BATCH_AXES = (0, 0)
"""The axes of recipe and state over the runs of a batch."""

Report = Callable[[dict[str, Json]], None]
POLL_SECONDS = 0.3
POLICIES = "warm_starts"
"""The folder of trained initial policies in a result cache."""


def work(
    plan: Plan,
    cache: ResultCache,
    report: Report,
    first: int = 0,
    every: float = CHECKPOINT_SECONDS,
    memory_limit: float = math.inf,
) -> None:
    """Compute the missing runs of `plan` that nobody else computes, until none is missing.

    `report` gets an event after every chunk. At the end of a chunk, unfinished runs write their checkpoints
    if so many seconds have passed. Processes that begin with different groups (`first`) compile different
    programs at the same time.

    A group is rarely worked on twice. After each one, a process with more than `memory_limit` bytes of memory
    forgets what it has compiled.
    """
    start = first % max(1, len(plan.groups))
    order = plan.groups[start:] + plan.groups[:start]
    while left := [group for group in order if cache.missing(run.key for run in group.runs)]:
        worked = False
        for group in left:
            by_key = {run.key: run for run in group.runs}
            while keys := cache.acquire(cache.missing(by_key), plan.runs_per_batch):
                runs = [by_key[key] for key in keys]
                _compute(runs, group.steps, plan.runs_per_batch, cache, report, every)
                worked = True
            forget_above(memory_limit)
        if not worked:
            # Others have acquired what is left; they may yet leave it.
            time.sleep(POLL_SECONDS)
    return_free_memory()


def build_member(run: PlannedRun, cache: ResultCache) -> BatchedRun:
    """Return the run as a member of a batch; train its warm start if that is a table and not trained yet."""
    recipe = run.recipe
    params = load_initial_params(
        run.config.warm_start, recipe.task, recipe.model, run.config.seed, cache.folder / POLICIES
    )
    return BatchedRun(recipe, params, run.config.seed)


def _compute(
    runs: Sequence[PlannedRun],
    steps: int,
    runs_per_batch: int,
    cache: ResultCache,
    report: Report,
    every: float,
) -> None:
    """Compute one acquired batch, write its runs and release them."""
    began, keys = time.perf_counter(), [run.key for run in runs]
    try:
        members = start_members(runs, cache, report)
        while is_unfinished(members, steps):
            members = advance_members(
                members, runs_per_batch, steps, every, lambda live: report(chunk_event(keys, live))
            )
            if is_unfinished(members, steps):
                save_checkpoints(runs, members, cache)
        write_members(runs, members, cache)
    finally:
        cache.add_seconds(keys, time.perf_counter() - began)
        cache.release(keys)
    report({"event": "batch", "runs": keys, "seconds": time.perf_counter() - began})


def chunk_event(keys: Sequence[str], live: Mapping[str, Json]) -> dict[str, Json]:
    """Return what a watcher reads of a chunk."""
    return {"event": "chunk", "runs": keys, **live}


def start_members(runs: Sequence[PlannedRun], cache: ResultCache, report: Report) -> list[BatchedRun]:
    """Return the runs as members of a batch, resumed from their checkpoints if there are any."""
    members = [replace(build_member(run, cache), progress=cache.progress(run.key)) for run in runs]
    for run, member in zip(runs, members, strict=True):
        if member.progress is not None:
            report(chunk_event([run.key], _live([member.steps_completed], [member.progress.metrics])))
    return members


def is_unfinished(members: Sequence[BatchedRun], steps: int) -> bool:
    """Return whether there is something left to compute of a batch."""
    return not all(
        member.steps_completed >= steps
        or (member.progress is not None and diverged_at(member.progress.metrics) >= 0)
        for member in members
    )


def advance_members(
    members: Sequence[BatchedRun],
    runs_per_batch: int,
    steps: int,
    seconds: float,
    report: Report = lambda _: None,
    callbacks: Sequence[Callback] = (),
) -> list[BatchedRun]:
    """Return the members about `seconds` later, at the end of a chunk, or when nothing is left to compute.

    `report` gets the steps of each member, how many are made, and the `LIVE` metrics of each chunk;
    `callbacks` get the chunk of the whole batch. A member that had made more than others, or whose steps are
    not a multiple of the chunk, makes too many; they are cut.
    """
    end, chunk = time.monotonic() + seconds, chunk_length(steps)
    first = [member.steps_completed for member in members]

    def parts(metrics: HostMetrics, made: Sequence[int], names: Collection[str]) -> Iterator[HostMetrics]:
        for i, before in enumerate(made):
            yield {name: metrics[name][i, : max(0, steps - before)] for name in names if name in metrics}

    def watch(done: ChunkMetrics) -> bool:
        before = [n + done.step - chunk for n in first]
        made = [min(steps, n + done.step) for n in first]
        report(_live(made, list(parts(done.metrics, before, LIVE))))
        watched = parts(done.metrics, before, WATCHED)
        over = all(n == steps or diverged_at(part) >= 0 for n, part in zip(made, watched, strict=True))
        return over or time.monotonic() >= end

    recipe, state = stack_members(members, runs_per_batch)
    left = -(-(steps - min(first)) // chunk) * chunk
    advance = partial(compile_batch(recipe, state).advance, chunk)
    state, metrics = train(
        recipe, state, left, callbacks, watch=watch, chunk=chunk, axes=BATCH_AXES, advance=advance
    )
    arrays, after = named_arrays(state), []
    for i, (member, part) in enumerate(zip(members, parts(metrics, first, metrics), strict=True)):
        before = [] if member.progress is None else [member.progress.metrics]
        progress = UnfinishedRun({name: a[i] for name, a in arrays.items()}, join_metrics([*before, part]))
        after.append(replace(member, progress=progress))
    return after


def _live(made: Sequence[int], parts: Sequence[Arrays]) -> dict[str, Json]:
    return {"step": list(made)} | {
        name: [part[name].tolist() for part in parts] for name in LIVE if name in parts[0]
    }


def save_checkpoints(runs: Sequence[PlannedRun], members: Sequence[BatchedRun], cache: ResultCache) -> None:
    """Write a checkpoint of each run of a batch."""
    for run, member in zip(runs, members, strict=True):
        assert member.progress is not None
        cache.save_checkpoint(run.key, member.progress)


def write_members(
    runs: Sequence[PlannedRun], members: Sequence[BatchedRun], cache: ResultCache, family: str | None = None
) -> None:
    """Write the runs of a batch; `family` of processors computed them, by default that of this process."""
    for run, member in zip(runs, members, strict=True):
        assert member.progress is not None
        tables = run_tables(run.key, columns(run.config), member.progress.metrics)
        # Later sweeps take the run from the cache, whatever processor they are on.
        tables.record["processor_family"] = family or processor_family()
        cache.write(run.key, tables)
