"""Runs that a sweep alone cannot make: with diagnostics between steps, or forked from another run."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments.arms.catalog import EARLY_FORK, FORK_OTHER_DATA, FORKS, UNTREATED
from experiments.regimes import BASE
from experiments.studies.diagnostics import DIAGNOSTIC_CATALOG, READING_OBJECTIVE
from experiments.studies.runs import (
    CHUNK,
    Frames,
    RunSpec,
    block_specs,
    count_per_batch,
    list_specs,
    record_arms,
    run_arms,
    with_attributes,
)
from experiments.studies.stages import Make, training_experiment
from simlab.core.experiment import Experiment, Run
from simlab.core.manifest import processor_family
from simlab.core.progress import describe_minutes
from simlab.core.results import write_table
from simlab.engines.constant import release_constants
from simlab.models.parameters import Params
from simlab.studies.estimands import Frame
from simlab.studies.records import Claim, arms_of, trials_of
from simlab.sweeps import Grid, recipe_of, run_config
from simlab.sweeps.execute import advance_members, build_member, write_members
from simlab.sweeps.forecast import expected_minutes
from simlab.sweeps.grids import Point
from simlab.sweeps.plan import PlannedRun, expand, make_plan
from simlab.sweeps.policy_training import expected_training_minutes, train_policies
from simlab.sweeps.program import chunk_length, stack_members, swept_recipe
from simlab.sweeps.result_cache import ResultCache
from simlab.sweeps.start import load_initial_params
from simlab.training.diagnostics import DiagnosticContext
from simlab.training.fork import fork
from simlab.training.loop import Chunk, train
from simlab.training.recipe import Recipe, TrainState, initial_state

EVERY, SMOKE_EVERY = 20, 10
AT_ONCE = 2
"""Batches that are computed at a time on a CPU. A GPU is busy with one."""


def with_diagnostics(arms: Mapping[str, Sequence[str]]) -> Make:
    """Return the function that runs a stage, those of `arms` in it with diagnostics between steps."""

    def make(run: Run, names: Sequence[str], block: int | None) -> Frames:
        with run.phase("diagnostics"):
            diagnostics = observe_arms(run, {} if run.smoke else arms, names, block)
        return run_arms(run, names, block) | {"diagnostics": diagnostics}

    return make


def validated_experiment(
    name: str,
    question: str,
    claims: Sequence[Claim],
    diagnostics: Mapping[str, Sequence[str]] = MappingProxyType({}),
    **how: Any,
) -> Experiment:
    """Return `training_experiment` with `diagnostics`, and validation on held-out prompts in every arm."""
    arms = arms_of(trials_of(claims, name))
    make = with_diagnostics({arm: (*diagnostics.get(arm, ()), "validation") for arm in arms})
    return training_experiment(name, question, claims, make=make, diagnosed=arms, **how)


def with_forks(arms: Mapping[str, Sequence[str]], base: str) -> Make:
    """Return the function that runs a stage with diagnostics and forks `base` if a fork is wanted."""

    def make(run: Run, names: Sequence[str], block: int | None) -> Frames:
        # Without an arm there are no tables.
        plain = [name for name in names if name not in FORKS] or [base]
        with run.phase("diagnostics"):
            diagnosed = {base: ("mismatch", "both engines")} if run.smoke else arms
            diagnostics = observe_arms(run, diagnosed, plain, block)
        frames = run_arms(run, plain, block) | {"diagnostics": diagnostics}
        if wanted := [name for name in names if name in FORKS]:
            with run.phase("forks"):
                branches = run_forks(run, wanted, block, base)
            frames |= {name: pd.concat([frames[name], branches[name]]) for name in branches}
        return frames

    return make


def observe_arms(
    run: Run, diagnosed: Mapping[str, Sequence[str]], names: Sequence[str], block: int | None
) -> Frame:
    """Compute the runs of those of `names` that have diagnostics; return these, a row per run and step."""
    together: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        if name in diagnosed:
            alone = [name] if READING_OBJECTIVE.intersection(diagnosed[name]) else []
            together.setdefault((*diagnosed[name], *alone), []).append(name)
    return observe_runs(
        run, [(diagnosed[arms[0]], list_specs(run, arms, block)) for arms in together.values()]
    )


def observe_runs(run: Run, wanted: Sequence[tuple[Sequence[str], Sequence[RunSpec]]]) -> Frame:
    """Compute runs and their diagnostics every few steps; return these.

    A run is what a sweep makes of it, bit by bit, and goes into the result cache, where a sweep finds it; its
    diagnostics lie beside it.

    Args:
        run: of the experiment.
        wanted: names of diagnostics with the runs that have them. Where the diagnostics read the objective,
            these runs have the same one.
    """
    cache, per_batch = ResultCache(run.out.parent / "cache"), count_per_batch(run)
    every = SMOKE_EVERY if run.smoke else EVERY
    files: list[Path] = []
    batches: list[tuple[Observation, Sequence[PlannedRun]]] = []
    for diagnostics, specs in wanted:
        observation = Observation(cache, tuple(diagnostics), every, per_batch)
        grid = Grid(tuple(Point.of_arm(spec.changes, spec.arm) for spec in specs))
        planned = expand(BASE, grid, per_batch)
        files += [observation.file(each.key) for each in planned]
        plan = make_plan(planned, observation.missing(planned), per_batch)
        if plan.missing:
            run.report(f"{run.name}, {', '.join(diagnostics)}: {plan.describe()}")
            minutes = expected_minutes(plan, count_at_once()) + expected_training_minutes(plan, cache)
            run.report(f"expected: {describe_minutes(minutes)}, without the diagnostics")
            train_policies(plan, cache)
        batches += [
            (observation, group.runs[first : first + per_batch])
            for group in plan.groups
            for first in range(0, len(group.runs), per_batch)
        ]
    if batches:
        observe_batches(run, batches)
    frames = map(pd.read_parquet, files)
    return pd.concat(frames, ignore_index=True) if files else pd.DataFrame(columns=["run", "step"])


@dataclass(frozen=True)
class Observation:
    """What is observed in a run every few steps, and where the run and its diagnostics are written."""

    cache: ResultCache
    diagnostics: tuple[str, ...]
    every: int
    runs_per_batch: int

    @property
    def folder(self) -> Path:
        """Folder of the diagnostics."""
        content = json.dumps([self.every, *self.diagnostics])
        digest = hashlib.sha256(content.encode()).hexdigest()[:20]
        return self.cache.folder / "diagnostics" / digest

    def file(self, key: str) -> Path:
        """Return the file of the diagnostics of a run."""
        return self.folder / f"{key}.parquet"

    def missing(self, runs: Sequence[PlannedRun]) -> list[str]:
        """Return the keys of runs that are not finished or have no diagnostics."""
        return [run.key for run in runs if not (self.cache.has(run.key) and self.file(run.key).is_file())]


def observe_batches(run: Run, batches: Sequence[tuple[Observation, Sequence[PlannedRun]]]) -> None:
    """Compute batches, two at a time on a CPU; the first error or Ctrl-C stops all of them.

    A batch alone leaves a core idle while it samples and while its diagnostics are written. Threads suffice:
    computing does not hold Python's lock.
    """
    stopped, total = Event(), sum(batch[0].config.steps for _, batch in batches)
    names = dict.fromkeys(each.arm for _, batch in batches for each in batch)
    title = f"{', '.join(names) if len(names) < 3 else f'{len(names)} arms'}, with diagnostics"
    with (
        run.progress(title, total, chunk_length(batches[0][1][0].config.steps)) as advance,
        ThreadPoolExecutor(count_at_once()) as threads,
    ):
        made = [
            threads.submit(observe_batch, batch, observation, advance, stopped)
            for observation, batch in batches
        ]
        try:
            for each in as_completed(made):
                each.result()
        except BaseException:
            stopped.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def count_at_once() -> int:
    """Return how many batches are computed at a time."""
    return AT_ONCE if jax.default_backend() == "cpu" else 1


def observe_batch(
    batch: Sequence[PlannedRun], observation: Observation, advance: Callable[..., None], stopped: Event
) -> None:
    """Compute runs side by side, write them and their diagnostics; write nothing once `stopped` is set."""
    cache, per_batch = observation.cache, observation.runs_per_batch
    keys, steps = [each.key for each in batch], batch[0].config.steps
    members = [build_member(each, cache) for each in batch]
    recipe, state = stack_members(members, per_batch)
    base = state.params
    if READING_OBJECTIVE.intersection(observation.diagnostics):
        diagnose = partial(build_diagnostics(observation.diagnostics), recipe_of(batch[0].config))
    else:
        diagnose = partial(build_diagnostics(observation.diagnostics, recipes=0), recipe)
    rows: list[dict[str, Any]] = []

    def record(chunk: Chunk) -> bool:
        if chunk.step % observation.every == 0:
            rows.extend(rows_of_step(keys, chunk.step, jax.device_get(diagnose(chunk.state, base))))
        return stopped.is_set()

    began = time.perf_counter()
    members = advance_members(members, per_batch, steps, math.inf, callbacks=[record, advance])
    if stopped.is_set():
        return
    write_members(batch, members, cache)
    cache.add_seconds(keys, time.perf_counter() - began)
    # Without rows a run diverged before the first diagnostics.
    table: Any = pd.DataFrame(rows or {"run": [], "step": []})
    for each in batch:
        write_table(observation.folder, each.key, table[table["run"] == each.key])


def run_forks(run: Run, names: Sequence[str], block: int | None, arm: str) -> Frames:
    """Run `arm` to its middle and continue as each of `names`; return runs, steps and diagnostics.

    `EARLY_FORK` continues from the first quarter. The diagnostics at the end are the mismatch under the
    engines of `arm`, for all forks, and the reward on held-out prompts.
    """
    record_arms(run, names)
    wanted = block_specs(arm, block, run.smoke)
    recipe, shared, states = start_runs(wanted, policy_folder(run))
    steps = wanted[0].changes["steps"]
    early, middle = steps // 4 // CHUNK * CHUNK or CHUNK, steps // 2
    diagnose = build_diagnostics(("mismatch", "both engines"))
    first, _ = train(shared, states, early, chunk=CHUNK, axes=(None, 0))
    halfway, _ = train(shared, jax.tree.map(jnp.copy, first), middle - early, chunk=CHUNK, axes=(None, 0))
    runs, tables, rows = [], [], []
    for name in names:
        begin, checkpoint = (early, first) if name == EARLY_FORK else (middle, halfway)
        changes = {
            key: value for key, value in FORKS[name].changes.items() if UNTREATED.changes[key] != value
        }
        branch = swept_recipe(run_config(BASE, {**wanted[0].changes, **changes}))
        state = jax.vmap(lambda state, branch=branch: fork(state, branch))(checkpoint)
        if name in (FORK_OTHER_DATA, EARLY_FORK):
            state = replace(state, key=jax.vmap(partial(jax.random.fold_in, data=1))(state.key))
        runs.append(describe_runs(name, wanted, steps - begin))
        keys = list(runs[-1]["run"])
        last, metrics = train(branch, state, steps - begin, chunk=CHUNK, axes=(None, 0))
        tables.append(curves(keys, [metrics], begin))
        rows += rows_of_step(keys, steps, jax.device_get(diagnose(recipe, last, last.params)))
    return {
        "runs": pd.concat(runs, ignore_index=True),
        "steps": pd.concat(tables, ignore_index=True),
        "diagnostics": pd.DataFrame(rows),
    }


def policy_folder(run: Run) -> Path:
    """Return the folder of initial policies that the sweeps of an experiment share."""
    return run.out.parent / "cache" / "warm_starts"


def load_policies(wanted: Sequence[RunSpec], folder: Path) -> tuple[Recipe, list[Params]]:
    """Return the recipe of the first of `wanted` and the initial parameters of each, cached in `folder`."""
    configs = [run_config(BASE, spec.changes) for spec in wanted]
    recipe = recipe_of(configs[0])
    return recipe, [
        load_initial_params(config.warm_start, recipe.task, recipe.model, config.seed, folder)
        for config in configs
    ]


def start_runs(wanted: Sequence[RunSpec], folder: Path) -> tuple[Recipe, Recipe, TrainState]:
    """Return the recipe, the same with the objective that sweeps share, and the stacked initial states."""
    recipe, first = load_policies(wanted, folder)
    shared = swept_recipe(run_config(BASE, wanted[0].changes))
    states = [
        initial_state(shared, params, jax.random.key(spec.changes["seed"]))
        for params, spec in zip(first, wanted, strict=True)
    ]
    return recipe, shared, jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def build_diagnostics(names: Sequence[str], recipes: int | None = None) -> Callable[..., Mapping[str, Any]]:
    """Return a function of a recipe, stacked states and initial parameters that computes `names`.

    `recipes` is the axis of the runs in the recipe, None for one that all share.
    """

    def diagnose(recipe: Recipe, state: TrainState, base: Any) -> dict[str, Any]:
        subject = DiagnosticContext(release_constants(recipe), state, base)
        return {key: value for name in names for key, value in DIAGNOSTIC_CATALOG[name](subject).items()}

    return jax.jit(jax.vmap(diagnose, in_axes=(recipes, 0, 0)))


def rows_of_step(
    names: Sequence[str], step: int, values: Mapping[str, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """Yield the diagnostics of runs after a step, a row each."""
    for index, name in enumerate(names):
        yield {"run": name, "step": step} | {key: float(value[index]) for key, value in values.items()}


def curves(keys: Sequence[str], parts: Sequence[Mapping[str, np.ndarray]], first: int) -> Frame:
    """Return scalar metrics [runs, steps] of successive parts, a row per run and step from `first`."""
    scalars = [name for name, values in parts[0].items() if values.ndim == 2]
    joined = {name: np.concatenate([part[name] for part in parts], axis=1) for name in scalars}
    count = next(iter(joined.values())).shape[1]
    columns = {"run": np.repeat(keys, count), "step": np.tile(np.arange(count) + first, len(keys))}
    return pd.DataFrame(columns | {name: values.reshape(-1) for name, values in joined.items()})


def describe_runs(arm: str, wanted: Sequence[RunSpec], completed: int | None = None) -> Frame:
    """Return the table `runs` of runs that no sweep made, with `completed` steps, by default all."""
    rows = []
    for spec in wanted:
        policy, seed, steps = spec.initial_policy, spec.changes["seed"], spec.changes["steps"]
        row = {"run": f"{arm} {policy} {seed}", "seed": seed, "status": "finished", "arm": arm}
        row |= {"initial_policy": policy, "steps": steps, "steps_completed": completed or steps}
        row |= {"processor_family": processor_family()}
        start = run_config(BASE, spec.changes).warm_start or {}
        rows.append(row | {"policy_sha256": start.get("sha256", "")})
    return with_attributes(pd.DataFrame(rows))
