"""Runs that a sweep cannot make: with diagnostics between steps, or forked halfway."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from experiments.arms import FORK_OTHER_DATA, FORKS, UNTREATED
from experiments.regimes import BASE
from experiments.studies.diagnostics import DIAGNOSTIC_CATALOG
from experiments.studies.runs import Frames, RunSpec, block_specs, run_arms, with_attributes
from experiments.studies.stages import Make
from simlab.core.experiment import Run
from simlab.core.manifest import processor_family
from simlab.models.parameters import Params
from simlab.studies.estimands import Frame
from simlab.sweeps import recipe_of, run_config
from simlab.sweeps.program import swept_recipe
from simlab.sweeps.start import load_initial_params
from simlab.training.diagnostics import DiagnosticContext
from simlab.training.fork import fork
from simlab.training.loop import Chunk, train
from simlab.training.recipe import Recipe, TrainState, initial_state

EVERY, SMOKE_EVERY = 20, 10


def repeat_with_diagnostics(run: Run, runs: Frame, arms: Mapping[str, Sequence[str]], block: int) -> Frame:
    """Repeat those of `arms` that are in `runs` and compute their diagnostics every few steps."""
    keys = {(row["arm"], row["initial_policy"], row["seed"]): row["run"] for row in runs.to_dict("records")}
    rows: list[dict[str, Any]] = []
    for arm, diagnostics in arms.items():
        if arm not in set(runs["arm"]):
            continue
        wanted = block_specs(arm, block, run.smoke)
        names = [keys[arm, spec.initial_policy, spec.changes["seed"]] for spec in wanted]
        recipe, shared, states = start_runs(wanted, policy_folder(run))
        # A copy: training gives the first arrays away.
        base = jax.tree.map(jnp.copy, states.params)
        diagnose = build_diagnostics(diagnostics)
        every = SMOKE_EVERY if run.smoke else EVERY
        steps = wanted[0].changes["steps"]
        record = partial(_record, rows, names, partial(diagnose, recipe), base)
        with run.progress(f"diagnostics of {arm}", steps // every) as advance:
            train(shared, states, steps, [record, advance], chunk=every, axes=(None, 0))
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["run", "step"])


def with_diagnostics(arms: Mapping[str, Sequence[str]]) -> Make:
    """Return the function that runs a stage and repeats those of `arms` in it with diagnostics."""

    def make(run: Run, names: Sequence[str], block: int) -> Frames:
        frames = run_arms(run, names, block)
        with run.phase("diagnostics"):
            wanted = {} if run.smoke else arms
            frames["diagnostics"] = repeat_with_diagnostics(run, frames["runs"], wanted, block)
        return frames

    return make


def with_forks(arms: Mapping[str, Sequence[str]], base: str) -> Make:
    """Return the function that runs a stage with diagnostics and forks `base` if a fork is wanted."""

    def make(run: Run, names: Sequence[str], block: int) -> Frames:
        # Without an arm there are no tables.
        plain = [name for name in names if name not in FORKS] or [base]
        frames = run_arms(run, plain, block)
        with run.phase("diagnostics"):
            wanted = {base: ("mismatch",)} if run.smoke else arms
            frames["diagnostics"] = repeat_with_diagnostics(run, frames["runs"], wanted, block)
        if set(names) & set(FORKS):
            with run.phase("forks"):
                branches = run_forks(run, block, base)
            frames |= {name: pd.concat([frames[name], branches[name]]) for name in branches}
        return frames

    return make


def run_forks(run: Run, block: int, arm: str) -> Frames:
    """Run `arm` to its middle and continue as each arm of `FORKS`; return runs, steps and diagnostics.

    The diagnostic at the end is the mismatch under the engines of `arm`, for all forks.
    """
    wanted = block_specs(arm, block, run.smoke)
    recipe, shared, states = start_runs(wanted, policy_folder(run))
    steps = wanted[0].changes["steps"]
    chunk, diagnose = steps // 2 // (1 if run.smoke else 5), build_diagnostics(("mismatch",))
    halfway, _ = train(shared, states, steps // 2, chunk=chunk, axes=(None, 0))
    runs, tables, rows = [], [], []
    for name, fork_arm in FORKS.items():
        changes = {key: value for key, value in fork_arm.changes.items() if UNTREATED.changes[key] != value}
        branch = swept_recipe(run_config(BASE, {**wanted[0].changes, **changes}))
        state = jax.vmap(lambda state, branch=branch: fork(state, branch))(halfway)
        if name == FORK_OTHER_DATA:
            state = replace(state, key=jax.vmap(partial(jax.random.fold_in, data=1))(state.key))
        keys = [f"{name} {spec.initial_policy} {spec.changes['seed']}" for spec in wanted]
        last, metrics = train(branch, state, steps // 2, chunk=chunk, axes=(None, 0))
        tables.append(curves(keys, [metrics], steps // 2))
        rows += _rows(keys, steps, jax.device_get(diagnose(recipe, last, last.params)))
        runs += [run_row(key, name, spec, steps // 2) for key, spec in zip(keys, wanted, strict=True)]
    return {
        "runs": with_attributes(pd.DataFrame(runs)),
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


def build_diagnostics(names: Sequence[str]) -> Callable[..., Mapping[str, Any]]:
    """Return a function of a recipe, stacked states and initial parameters that computes `names`."""

    def diagnose(recipe: Recipe, state: TrainState, base: Any) -> dict[str, Any]:
        subject = DiagnosticContext(recipe, state, base)
        return {key: value for name in names for key, value in DIAGNOSTIC_CATALOG[name](subject).items()}

    return jax.jit(jax.vmap(diagnose, in_axes=(None, 0, 0)))


def _record(
    rows: list[dict[str, Any]],
    names: Sequence[str],
    diagnose: Callable[[TrainState, Params], Mapping[str, Array]],
    base: Params,
    chunk: Chunk,
) -> None:
    """Callback of the loop: add the diagnostics at the end of a chunk to `rows`."""
    rows += _rows(names, chunk.step, jax.device_get(diagnose(chunk.state, base)))


def _rows(names: Sequence[str], step: int, values: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    for index, name in enumerate(names):
        yield {"run": name, "step": step} | {key: float(value[index]) for key, value in values.items()}


def curves(keys: Sequence[str], parts: Sequence[Mapping[str, np.ndarray]], first: int) -> Frame:
    """Return scalar metrics [runs, steps] of successive parts, a row per run and step from `first`."""
    scalars = [name for name, values in parts[0].items() if values.ndim == 2]
    joined = {name: np.concatenate([part[name] for part in parts], axis=1) for name in scalars}
    count = next(iter(joined.values())).shape[1]
    columns = {"run": np.repeat(keys, count), "step": np.tile(np.arange(count) + first, len(keys))}
    return pd.DataFrame(columns | {name: values.reshape(-1) for name, values in joined.items()})


def run_row(key: str, arm: str, spec: RunSpec, completed: int) -> dict[str, Any]:
    """Return the row in `runs` of a run that no sweep made."""
    values = {"run": key, "seed": spec.changes["seed"], "status": "finished", "arm": arm}
    return values | {
        "initial_policy": spec.initial_policy,
        "steps": spec.changes["steps"],
        "steps_completed": completed,
        "processor_family": processor_family(),
        "policy_sha256": (run_config(BASE, spec.changes).warm_start or {}).get("sha256", ""),
    }
