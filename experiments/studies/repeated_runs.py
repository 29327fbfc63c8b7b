"""Runs that a sweep alone cannot make: with diagnostics between steps, or forked from another run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments.arms.catalog import EARLY_FORK, FORK_OTHER_DATA, FORKS, UNTREATED
from experiments.regimes import BASE
from experiments.studies.observed_runs import build_diagnostics, observe_arms, rows_of_step
from experiments.studies.runs import (
    CHUNK,
    Frames,
    RunSpec,
    block_specs,
    record_arms,
    run_arms,
    with_attributes,
)
from experiments.studies.stages import Make, training_experiment
from simlab.core.experiment import Experiment, Run
from simlab.core.manifest import processor_family
from simlab.models.parameters import Params
from simlab.studies.estimands import Frame
from simlab.studies.records import Claim, arms_of, trials_of
from simlab.sweeps import recipe_of, run_config
from simlab.sweeps.program import swept_recipe
from simlab.sweeps.start import load_initial_params
from simlab.training.fork import fork
from simlab.training.loop import train
from simlab.training.recipe import Recipe, TrainState, initial_state


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
