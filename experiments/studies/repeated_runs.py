"""Run what a sweep cannot: forks of other runs, and runs whose metrics become further tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments.arms.forks import EARLY_FORK, FORK_OTHER_DATA
from experiments.regimes import BASE
from experiments.studies.observed_runs import DiagnosticRow, build_diagnostics, rows_of_step
from experiments.studies.runs import (
    CHUNK,
    Frames,
    RunSpec,
    block_specs,
    policy_folder,
    record_arms,
    with_attributes,
    with_provenance,
)
from simlab.core.backend import require_one_thread
from simlab.models.parameters import Params
from simlab.studies.arms import Arm
from simlab.studies.estimands import Frame
from simlab.studies.experiment import ExperimentContext
from simlab.sweeps import recipe_of, run_config
from simlab.sweeps.program import swept_recipe
from simlab.sweeps.start import load_initial_params
from simlab.training.fork import fork
from simlab.training.loop import train
from simlab.training.recipe import Recipe, TrainState, initial_state


def run_forks(run: ExperimentContext, forks: Sequence[Arm], block: int | None) -> Frames:
    """Run the arm that `forks` continue to its middle and continue as each of them.

    `EARLY_FORK` continues from the first quarter. The diagnostics at the end are the mismatch under the
    engines of that arm, for all forks, and the reward on held-out prompts.

    Returns:
        `runs`, `steps` and `diagnostics`.
    """
    record_arms(run, forks)
    (continued,) = {arm.forked_from for arm in forks}
    assert continued is not None
    wanted = block_specs(continued, block, run.smoke)
    recipe, shared, states = start_runs(wanted, policy_folder(run))
    steps = wanted[0].changes["steps"]
    early, middle = steps // 4 // CHUNK * CHUNK or CHUNK, steps // 2
    diagnose = build_diagnostics(("mismatch", "both engines"))
    first, _ = train(shared, states, early, chunk=CHUNK, axes=(None, 0))
    halfway, _ = train(shared, jax.tree.map(jnp.copy, first), middle - early, chunk=CHUNK, axes=(None, 0))
    runs, tables, rows = [], [], []
    for arm in forks:
        begin, checkpoint = (early, first) if arm == EARLY_FORK else (middle, halfway)
        changes = {key: value for key, value in arm.changes.items() if continued.changes[key] != value}
        branch = swept_recipe(run_config(BASE, {**wanted[0].changes, **changes}))
        state = jax.vmap(lambda state, branch=branch: fork(state, branch))(checkpoint)
        if arm in (FORK_OTHER_DATA, EARLY_FORK):
            state = replace(state, key=jax.vmap(partial(jax.random.fold_in, data=1))(state.key))
        runs.append(describe_runs(arm, wanted, policy_folder(run), steps - begin))
        keys = list(runs[-1]["run"])
        last, metrics = train(branch, state, steps - begin, chunk=CHUNK, axes=(None, 0))
        tables.append(curves(keys, [metrics], begin))
        rows += rows_of_step(keys, steps, jax.device_get(diagnose(recipe, last, last.params)))
    return join_frames(runs, tables, rows)


def load_policies(wanted: Sequence[RunSpec], folder: Path) -> tuple[Recipe, list[Params]]:
    """Return the recipe of the first of `wanted` and the initial parameters of each, cached in `folder`.

    Missing policies are trained here, and sweeps share the folder: this process must have one thread.
    """
    require_one_thread()
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


def join_frames(runs: Sequence[Frame], steps: Sequence[Frame], rows: Sequence[DiagnosticRow]) -> Frames:
    """Return the tables of several arms from those of each; `rows` are the diagnostics of all of them."""
    frames = {"runs": runs, "steps": steps}
    joined = {name: pd.concat(parts, ignore_index=True) for name, parts in frames.items()}
    return joined | {"diagnostics": pd.DataFrame(rows)}


def describe_runs(arm: Arm, wanted: Sequence[RunSpec], folder: Path, completed: int | None = None) -> Frame:
    """Return the table `runs` of runs that no sweep made, with `completed` steps, by default all.

    Their initial policies are in `folder`.
    """
    rows = []
    for spec in wanted:
        policy, seed, steps = spec.initial_policy, spec.changes["seed"], spec.changes["steps"]
        row = {"run": f"{arm} {policy} {seed}", "seed": seed, "status": "finished", "arm": arm.id}
        row |= {"initial_policy": policy, "steps": steps, "steps_completed": completed or steps}
        rows.append(row)
    return with_provenance(with_attributes(pd.DataFrame(rows), [arm]), wanted, folder)
