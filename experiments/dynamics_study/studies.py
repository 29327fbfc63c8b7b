"""Runs that a sweep cannot make: watched between their steps, or forked halfway."""

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

from experiments.dynamics_study.looks import LOOKS
from experiments.dynamics_study.runs import Frames, Place, collect, places
from experiments.dynamics_study.stages import Make
from experiments.regime import BASE, CONTROL
from simlab.core.experiment import Run
from simlab.models.parameters import Params
from simlab.studies.estimands import Frame
from simlab.sweeps import recipe_of, run_config
from simlab.sweeps.program import swept_recipe
from simlab.sweeps.start import first_params
from simlab.training.diagnostics import DiagnosticContext
from simlab.training.fork import fork
from simlab.training.loop import Chunk, train
from simlab.training.recipe import Recipe, TrainState, initial_state

EVERY, SMOKE_EVERY = 20, 10
FORKS: dict[str, dict[str, Any]] = {
    "fork": {},
    "fork, other data": {},
    "fork, mismatch cut": {"engines": CONTROL},
    "fork, distortion cut": {"objective": "grpo+seq_tis"},
}
OTHER_DATA = "fork, other data"


def watch(run: Run, runs: Frame, arms: Mapping[str, Sequence[str]], seed: int) -> Frame:
    """Repeat those of `arms` that are in `runs` and look every few steps."""
    keys = {(row["arm"], row["start"], row["seed"]): row["run"] for row in runs.to_dict("records")}
    rows: list[dict[str, Any]] = []
    for arm, looks in arms.items():
        if arm not in set(runs["arm"]):
            continue
        wanted = places(arm, seed, run.smoke)
        names = [keys[arm, place.start, place.changes["seed"]] for place in wanted]
        recipe, shared, states = begin(wanted, taught(run))
        # A copy: training gives the first arrays away.
        base = jax.tree.map(jnp.copy, states.params)
        look = looking(looks)
        every = SMOKE_EVERY if run.smoke else EVERY
        steps = wanted[0].changes["steps"]
        measure = partial(_measure, rows, names, partial(look, recipe), base)
        with run.progress(f"watching {arm}", steps // every) as advance:
            train(shared, states, steps, [measure, advance], chunk=every, axes=(None, 0))
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["run", "step"])


def watching(arms: Mapping[str, Sequence[str]]) -> Make:
    """Return what makes a stage and repeats, watched, those of `arms` in it; in the smoke mode none."""

    def make(run: Run, names: Sequence[str], seed: int) -> Frames:
        frames = collect(run, names, seed)
        with run.phase("watching"):
            frames["watched"] = watch(run, frames["runs"], {} if run.smoke else arms, seed)
        return frames

    return make


def forking(arms: Mapping[str, Sequence[str]], base: str) -> Make:
    """Return a maker that repeats `arms` with their diagnostics and forks `base` if a branch is wanted."""

    def make(run: Run, names: Sequence[str], seed: int) -> Frames:
        # Without an arm there are no tables.
        plain = [name for name in names if name not in FORKS] or [base]
        frames = collect(run, plain, seed)
        with run.phase("watching"):
            watched = {base: ("mismatch",)} if run.smoke else arms
            frames["watched"] = watch(run, frames["runs"], watched, seed)
        if set(names) & set(FORKS):
            with run.phase("forks"):
                branches = forked(run, seed, base)
            frames |= {name: pd.concat([frames[name], branches[name]]) for name in branches}
        return frames

    return make


def forked(run: Run, seed: int, arm: str) -> Frames:
    """Run `arm` to its middle and go on in every way of `FORKS`: runs, steps, and what was watched.

    Watched at the end: the mismatch under the engines of `arm`, whatever the branch runs on.
    """
    wanted = places(arm, seed, run.smoke)
    recipe, shared, states = begin(wanted, taught(run))
    steps = wanted[0].changes["steps"]
    chunk, look = steps // 2 // (1 if run.smoke else 5), looking(("mismatch",))
    halfway, _ = train(shared, states, steps // 2, chunk=chunk, axes=(None, 0))
    runs, tables, rows = [], [], []
    for name, changes in FORKS.items():
        branch = swept_recipe(run_config(BASE, {**wanted[0].changes, **changes}))
        state = jax.vmap(lambda state, branch=branch: fork(state, branch))(halfway)
        if name == OTHER_DATA:
            state = replace(state, key=jax.vmap(partial(jax.random.fold_in, data=1))(state.key))
        keys = [f"{name} {place.start} {place.changes['seed']}" for place in wanted]
        ended, metrics = train(branch, state, steps // 2, chunk=chunk, axes=(None, 0))
        tables.append(curves(keys, [metrics], steps // 2))
        rows += _rows(keys, steps, jax.device_get(look(recipe, ended, ended.params)))
        runs += [run_row(key, name, place, steps // 2) for key, place in zip(keys, wanted, strict=True)]
    return {
        "runs": pd.DataFrame(runs),
        "steps": pd.concat(tables, ignore_index=True),
        "watched": pd.DataFrame(rows),
    }


def taught(run: Run) -> Path:
    """Return the folder of first policies that the sweeps of an experiment share."""
    return run.out.parent / "campaign" / "warm_starts"


def policies(wanted: Sequence[Place], folder: Path) -> tuple[Recipe, list[Params]]:
    """Return the recipe of the first of `wanted` and the first parameters of each, which `folder` keeps."""
    configs = [run_config(BASE, place.changes) for place in wanted]
    recipe = recipe_of(configs[0])
    return recipe, [
        first_params(config.warm_start, recipe.task, recipe.model, config.seed, folder) for config in configs
    ]


def begin(wanted: Sequence[Place], folder: Path) -> tuple[Recipe, Recipe, TrainState]:
    """Return the recipe, the same with the objective that sweeps share, and the first states side by side."""
    recipe, first = policies(wanted, folder)
    shared = swept_recipe(run_config(BASE, wanted[0].changes))
    states = [
        initial_state(shared, params, jax.random.key(place.changes["seed"]))
        for params, place in zip(first, wanted, strict=True)
    ]
    return recipe, shared, jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def looking(names: Sequence[str]) -> Callable[..., Mapping[str, Any]]:
    """Return the looks `names` at a recipe, states side by side and their first parameters."""

    def look(recipe: Recipe, state: TrainState, base: Any) -> dict[str, Any]:
        subject = DiagnosticContext(recipe, state, base)
        return {key: value for name in names for key, value in LOOKS[name](subject).items()}

    return jax.jit(jax.vmap(look, in_axes=(None, 0, 0)))


def _measure(
    rows: list[dict[str, Any]],
    names: Sequence[str],
    look: Callable[[TrainState, Params], Mapping[str, Array]],
    base: Params,
    chunk: Chunk,
) -> None:
    """Callback of the loop: add what is measured at the end of a chunk to `rows`."""
    rows += _rows(names, chunk.step, jax.device_get(look(chunk.state, base)))


def _rows(names: Sequence[str], step: int, seen: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    for lane, name in enumerate(names):
        yield {"run": name, "step": step} | {key: float(value[lane]) for key, value in seen.items()}


def curves(keys: Sequence[str], parts: Sequence[Mapping[str, np.ndarray]], first: int) -> Frame:
    """Return scalar metrics [lanes, steps] of successive parts as one row per run and step, from `first`."""
    scalars = [name for name, values in parts[0].items() if values.ndim == 2]
    whole = {name: np.concatenate([part[name] for part in parts], axis=1) for name in scalars}
    count = next(iter(whole.values())).shape[1]
    columns = {"run": np.repeat(keys, count), "step": np.tile(np.arange(count) + first, len(keys))}
    return pd.DataFrame(columns | {name: values.reshape(-1) for name, values in whole.items()})


def run_row(key: str, arm: str, place: Place, made: int) -> dict[str, Any]:
    """Return the row in `runs` of a run that no sweep made."""
    values = {"run": key, "seed": place.changes["seed"], "status": "finished", "arm": arm}
    return values | {"start": place.start, "steps": place.changes["steps"], "steps_made": made}
