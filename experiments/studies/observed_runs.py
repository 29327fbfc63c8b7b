"""Compute runs with diagnostics every few steps, in processes of one thread each, as a sweep does."""

import hashlib
import json
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from jax import Array

from experiments.regimes import BASE
from experiments.studies import diagnostics as diagnostic_code
from experiments.studies.diagnostics import DIAGNOSTIC_CATALOG, READING_OBJECTIVE
from experiments.studies.runs import RunSpec, count_per_batch, list_specs
from simlab.core.backend import enable_compile_cache, limiting_children
from simlab.core.json_value import Json
from simlab.core.progress import describe_minutes
from simlab.core.results import write_table
from simlab.engines.constant import release_constants
from simlab.models.parameters import Params
from simlab.studies.arms import Arm
from simlab.studies.estimands import Frame
from simlab.studies.experiment import ExperimentContext
from simlab.sweeps import Grid, recipe_of
from simlab.sweeps.compilation import forget_above
from simlab.sweeps.execute import advance_members, build_member, chunk_event, write_members
from simlab.sweeps.forecast import Stopwatch, expected_minutes
from simlab.sweeps.grids import Point
from simlab.sweeps.plan import Plan, PlannedRun, expand, make_plan
from simlab.sweeps.policy_training import (
    expected_training_minutes,
    missing_policies,
    train_policies,
    train_policy,
)
from simlab.sweeps.program import chunk_length, stack_members
from simlab.sweeps.result_cache import ResultCache
from simlab.training.diagnostics import DiagnosticContext
from simlab.training.loop import Chunk
from simlab.training.recipe import Recipe, TrainState

EVERY, SMOKE_EVERY = 20, 10
POLL_SECONDS = 1.0
DiagnosticRow = Mapping[str, str | float]
"""Diagnostics of a run after a step; `run` is the key of the run."""
MEMORY_LIMIT = 2e9
"""Bytes of memory above which a process forgets its compiled functions, which the cache folder keeps."""


def observe_arms(
    run: ExperimentContext,
    diagnosed: Mapping[Arm, Sequence[str]],
    arms: Sequence[Arm],
    block: int | None,
    every: int = EVERY,
) -> Frame:
    """Compute the runs of those of `arms` that have diagnostics.

    Returns:
        The diagnostics, a row per run and each `every` steps.
    """
    together: dict[tuple[str, ...], list[Arm]] = {}
    for arm in arms:
        if arm in diagnosed:
            alone = [arm.id] if READING_OBJECTIVE.intersection(diagnosed[arm]) else []
            together.setdefault((*diagnosed[arm], *alone), []).append(arm)
    wanted = [(diagnosed[each[0]], list_specs(run, each, block)) for each in together.values()]
    return observe_runs(run, wanted, every)


def observe_runs(
    run: ExperimentContext,
    wanted: Sequence[tuple[Sequence[str], Sequence[RunSpec]]],
    every: int = EVERY,
    base: Mapping[str, Json] = BASE,
) -> Frame:
    """Compute runs and their diagnostics every few steps; return these.

    A run has the bits of the same run in a sweep, and both use the same entry of the result cache.
    Diagnostics are stored next to it.

    Args:
        run: of the experiment.
        wanted: names of diagnostics with the runs that have them. Where the diagnostics read the objective,
            these runs have the same one.
        every: steps between diagnostics, `SMOKE_EVERY` in smoke mode.
        base: the run that the specifications change.
    """
    results, per_batch = ResultCache(run.out.parent / "cache"), count_per_batch(run)
    every = SMOKE_EVERY if run.smoke else every
    files: list[Path] = []
    batches: list[Batch] = []
    for diagnostics, specs in wanted:
        observation = Observation(results.folder, tuple(diagnostics), every, per_batch)
        grid = Grid(tuple(Point.of_arm(spec.changes, spec.arm.id) for spec in specs))
        planned = expand(base, grid, per_batch)
        files += [observation.file(each.key) for each in planned]
        plan = make_plan(planned, observation.missing(planned), per_batch)
        if plan.missing:
            run.report(f"{run.name}, {', '.join(diagnostics)}: {plan.describe()}")
            count = count_processes(run)
            minutes = expected_minutes(plan, count) + expected_training_minutes(plan, results, count)
            run.report(f"expected: {describe_minutes(minutes)}, without the diagnostics")
            train_missing_policies(run, plan, results)
        batches += [
            (observation, group.runs[first : first + per_batch])
            for group in plan.groups
            for first in range(0, len(group.runs), per_batch)
        ]
    if batches:
        observe_batches(run, batches)
    frames = map(pd.read_parquet, files)
    return pd.concat(frames, ignore_index=True) if files else pd.DataFrame(columns=["run", "step"])


def train_missing_policies(run: ExperimentContext, plan: Plan, results: ResultCache) -> None:
    """Train the initial policies that the runs of a plan need."""
    missing = missing_policies(plan, results)
    if count := min(count_processes(run), len(missing)):
        with run.progress("initial policies", len(missing)) as advance:
            items = [(path, each, results.folder) for path, each in missing.items()]
            _compute_in_processes(_train_here, items, count, advance)
    else:
        train_policies(plan, results)


@dataclass(frozen=True)
class Observation:
    """The diagnostics of a run every few steps, and where the run and its diagnostics are written."""

    results: Path
    """Folder of the result cache."""
    diagnostics: tuple[str, ...]
    every: int
    runs_per_batch: int

    @property
    def folder(self) -> Path:
        """Folder of the diagnostics, which depends on their code: that of a run is part of its key."""
        content = json.dumps([self.every, *self.diagnostics, Path(diagnostic_code.__file__).read_text()])
        digest = hashlib.sha256(content.encode()).hexdigest()[:20]
        return self.results / "diagnostics" / digest

    def file(self, key: str) -> Path:
        """Return the file of the diagnostics of a run."""
        return self.folder / f"{key}.parquet"

    def missing(self, runs: Sequence[PlannedRun]) -> list[str]:
        """Return the keys of runs that are not finished or have no diagnostics."""
        finished = ResultCache(self.results).has
        return [run.key for run in runs if not (finished(run.key) and self.file(run.key).is_file())]


Batch = tuple[Observation, Sequence[PlannedRun]]


def observe_batches(run: ExperimentContext, batches: Sequence[Batch]) -> None:
    """Compute batches, one per process at a time; the first error or Ctrl-C stops all of them."""
    total = sum(batch[0].config.steps for _, batch in batches)
    names = dict.fromkeys(each.arm for _, batch in batches for each in batch)
    title = f"{', '.join(names) if len(names) < 3 else f'{len(names)} arms'}, with diagnostics"
    with run.progress(title, total, chunk_length(batches[0][1][0].config.steps)) as advance:
        if count := min(count_processes(run), len(batches)):
            _compute_in_processes(_observe_here, batches, count, advance)
        else:
            for batch in batches:
                observe_batch(*batch, advance)


def count_processes(run: ExperimentContext) -> int:
    """Return the number of processes: one per core, none for smoke runs and a GPU."""
    return 0 if run.smoke or jax.default_backend() != "cpu" else len(os.sched_getaffinity(0))


def _compute_in_processes(
    function: Callable[..., None], items: Sequence[tuple], count: int, advance: Callable[[], None]
) -> None:
    """Call `function` with every item in `count` processes; `advance` follows the parts that they count.

    Sweeps start their workers in another way (see `simlab.sweeps.local`): these processes import the main
    script again, which is safe only for a guarded one, such as the command line.
    """
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(count, context, _start_process, (counter,)) as pool:
        with limiting_children():  # they read the variable when they import JAX
            left = {pool.submit(function, *item) for item in items}
        shown = 0
        try:
            while left:
                done, left = wait(left, POLL_SECONDS, FIRST_COMPLETED)
                for _ in range(counter.value - shown):
                    advance()
                    shown += 1
                for each in done:
                    each.result()
        except BaseException as error:
            # An item takes minutes, and the pool would wait for it.
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                raise RuntimeError(
                    "a process that computed was killed, perhaps for lack of memory; "
                    "the same command continues with what is missing"
                ) from error
            raise


_counter: Synchronized | None = None
"""Counts the finished parts of items, in all processes; set in these."""


def _start_process(counter: Synchronized) -> None:
    """End this process with its parent."""
    global _counter
    _counter = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent terminates this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    enable_compile_cache()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _count(_: Chunk | None = None) -> None:
    assert _counter is not None
    with _counter.get_lock():
        _counter.value += 1


def _observe_here(observation: Observation, batch: Sequence[PlannedRun]) -> None:
    observe_batch(observation, batch, _count)
    forget_above(MEMORY_LIMIT)


def _train_here(path: Path, planned: PlannedRun, results: Path) -> None:
    train_policy(path, planned, ResultCache(results))
    _count()


def observe_batch(
    observation: Observation, batch: Sequence[PlannedRun], advance: Callable[..., None]
) -> None:
    """Compute runs side by side; write them and their diagnostics."""
    results, per_batch = ResultCache(observation.results), observation.runs_per_batch
    keys, steps = [each.key for each in batch], batch[0].config.steps
    members = [build_member(each, results) for each in batch]
    recipe, state = stack_members(members, per_batch)
    base = state.params
    if READING_OBJECTIVE.intersection(observation.diagnostics):
        diagnose = partial(build_diagnostics(observation.diagnostics), recipe_of(batch[0].config))
    else:
        diagnose = partial(build_diagnostics(observation.diagnostics, recipes=0), recipe)
    rows: list[DiagnosticRow] = []

    def record(chunk: Chunk) -> None:
        if chunk.step % observation.every == 0:
            rows.extend(rows_of_step(keys, chunk.step, jax.device_get(diagnose(chunk.state, base))))
        watch.leave_out()

    began, watch = time.perf_counter(), Stopwatch(make_plan(batch, keys, per_batch))
    members = advance_members(
        members,
        per_batch,
        steps,
        math.inf,
        lambda live: watch(chunk_event(keys, live)),
        callbacks=[record, advance],
    )
    watch({"event": "batch", "runs": keys})
    # Without rows a run diverged before the first diagnostics.
    table: Any = pd.DataFrame(rows or {"run": [], "step": []})
    for each in batch:
        write_table(observation.folder, each.key, table[table["run"] == each.key])
    write_members(batch, members, results)
    results.add_seconds(keys, time.perf_counter() - began)


@cache
def build_diagnostics(
    names: tuple[str, ...], recipes: int | None = None
) -> Callable[..., Mapping[str, Array]]:
    """Return a function of a recipe, stacked states and initial parameters that computes `names`.

    `recipes` is the axis of the runs in the recipe, None for one that all share.
    """

    def diagnose(recipe: Recipe, state: TrainState, base: Params | None) -> dict[str, Array]:
        subject = DiagnosticContext(release_constants(recipe), state, base)
        return {key: value for name in names for key, value in DIAGNOSTIC_CATALOG[name](subject).items()}

    return jax.jit(jax.vmap(diagnose, in_axes=(recipes, 0, 0)))


def rows_of_step(
    names: Sequence[str], step: int, values: Mapping[str, np.ndarray]
) -> Iterator[DiagnosticRow]:
    """Yield the diagnostics of runs after a step, a row each."""
    for index, name in enumerate(names):
        yield {"run": name, "step": step} | {key: float(value[index]) for key, value in values.items()}
