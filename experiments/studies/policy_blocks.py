"""Run arms from blocks of initial policies, all arms that are compared before the next block.

An experiment that is stopped early then has a balanced result: compared arms have the same initial policies.
The tables of a finished pair of arm and block are saved, so that an interrupted experiment resumes from there
or from an earlier result.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd
from jax import Array

from experiments.arms.catalog import ARMS
from experiments.regimes import BASE
from experiments.studies.observed_runs import rows_of_step
from experiments.studies.repeated_runs import curves, describe_runs, policy_folder, start_runs
from experiments.studies.resume import load_resumed, merge_tables
from experiments.studies.runs import BLOCK, CHUNK, SEED, VECTORS, RunSpec, build_tables, run_specs
from simlab.core.atomic import write_atomically
from simlab.core.experiment import Run
from simlab.core.results import write_table
from simlab.engines import Engine
from simlab.models.parameters import Params
from simlab.studies.estimands import Frame, Tables
from simlab.sweeps.code_version import code_digest
from simlab.training.evaluation import evaluate
from simlab.training.loop import Chunk, train
from simlab.training.recipe import Recipe

HELD_OUT = 32
"""Held-out prompts, each with a group of responses."""
HELD_OUT_POINTS = 4
"""Times per run, evenly spaced, the last one at its end."""
Schedule = Sequence[tuple[int, Sequence[str]]]
"""Numbers of blocks and the arms that are run from each, in this order."""


def run_blocks(run: Run, schedule: Schedule, minutes: Mapping[str, float]) -> Tables:
    """Run the parts of a schedule, write and return the tables; Ctrl-C keeps the complete entries.

    Args:
        run: the execution of the experiment.
        schedule: blocks and arms; the arms of an entry are compared, so an entry is kept or left out.
        minutes: expected core-minutes of a block of an arm, by arm; shown with the plan.
    """
    arms = list(dict.fromkeys(arm for _, names in schedule for arm in names))
    wanted = {arm: run_specs(arm, SEED, run.smoke) for arm in arms}
    blocks = split_blocks(len(wanted[arms[0]]))
    report_plan(run, schedule, minutes)
    tables, earlier, done = Tables({}), load_resumed(run, arms), []
    for number, names in schedule:
        try:
            parts = [make_part(run, arm, wanted[arm][blocks[number]], earlier) for arm in names]
        except KeyboardInterrupt:
            run.report(
                f"interrupted in entry {len(done) + 1} of {len(schedule)}: the tables hold those before"
            )
            break
        for part in parts:
            tables = merge_tables(tables, part)
        done.append([number, list(names)])
    if not done:
        raise KeyboardInterrupt
    run.configure(
        base=BASE,
        chunk=CHUNK,
        completed=done,
        planned=[[number, list(names)] for number, names in schedule],
        policies_per_block=BLOCK,
        arms={arm: ARMS[arm].recorded for arm in arms},
    )
    run.seeds([SEED])
    for name, table in tables.tables.items():
        run.table(name, table)
    return tables


def split_blocks(policies: int) -> list[slice]:
    """Return the blocks of `policies` initial policies."""
    return [slice(first, min(first + BLOCK, policies)) for first in range(0, policies, BLOCK)]


def report_plan(run: Run, schedule: Schedule, minutes: Mapping[str, float]) -> None:
    """Print blocks, arms and core-minutes before anything is computed."""
    total = sum(minutes.get(arm, 0.0) for _, arms in schedule for arm in arms)
    run.report(f"{len(schedule)} entries, blocks of {BLOCK} policies, {total:.0f} core-minutes in all")
    for number, arms in schedule:
        cost = sum(minutes.get(arm, 0.0) for arm in arms)
        run.report(f"  block {number + 1}, {cost:.0f} core-minutes: {', '.join(arms)}")


def resumed_part(earlier: Tables, arm: str, wanted: Sequence[RunSpec]) -> Tables | None:
    """Return the rows of one block of an arm in an earlier result, None if it lacks one of the runs."""
    if not earlier.tables:
        return None
    runs = earlier.table("runs")
    policies = [spec.initial_policy for spec in wanted]
    chosen = runs["run"][(runs["arm"] == arm) & runs["initial_policy"].isin(policies)]
    if len(chosen) < len(wanted):
        return None
    return Tables({name: table[table["run"].isin(list(chosen))] for name, table in earlier.tables.items()})


def make_part(run: Run, arm: str, wanted: Sequence[RunSpec], earlier: Tables) -> Tables:
    """Return the tables of one block of an arm, from `earlier` or the cache if it was finished before."""
    if (part := resumed_part(earlier, arm, wanted)) is not None:
        return part
    folder = run.out.parent / "cache" / "blocks" / _part_key(arm, wanted)
    finished = folder / "seconds"
    if not finished.is_file():
        started = time.perf_counter()
        for name, table in run_part(run, arm, wanted).tables.items():
            write_table(folder, name, table)
        seconds = time.perf_counter() - started
        write_atomically(finished, lambda file: file.write(f"{seconds:.1f}".encode()))
        run.report(f"{arm}, {wanted[0].initial_policy} to {wanted[-1].initial_policy}: {seconds:.0f} s")
    run.timings[arm] = run.timings.get(arm, 0.0) + float(finished.read_text())
    return Tables({path.stem: pd.read_parquet(path) for path in folder.glob("*.parquet")})


def run_part(run: Run, arm: str, wanted: Sequence[RunSpec]) -> Tables:
    """Train one block of an arm and evaluate its policies on held-out prompts under both engines."""
    runs = describe_runs(arm, wanted)
    keys = list(runs["run"])
    _, shared, states = start_runs(wanted, policy_folder(run))
    steps = wanted[0].changes["steps"]
    rows: list[dict[str, Any]] = []

    def record(chunk: Chunk) -> None:
        if chunk.step % (steps // HELD_OUT_POINTS) == 0:
            measured = jax.device_get(evaluate_both(shared, chunk.state.params, chunk.state.key))
            rows.extend(rows_of_step(keys, chunk.step, measured))

    with run.progress(arm, steps, CHUNK) as advance:
        _, metrics = train(shared, states, steps, [record, advance], chunk=CHUNK, axes=(None, 0))
    frames = {
        "runs": runs,
        "steps": curves(keys, [metrics], 0),
        "vectors": vector_rows(keys, metrics),
        "diagnostics": pd.DataFrame(rows),
    }
    return build_tables(frames)


@jax.jit
def evaluate_both(recipe: Recipe, params: Params, keys: Array) -> dict[str, Array]:
    """Return the held-out reward of stacked policies when either engine samples, with the same keys.

    `held_out_infer`, `held_out_train`, [runs].
    """

    def measure(policy: Params, key: Array, engine: Engine) -> Array:
        return evaluate(recipe, policy, engine, key, prompts=HELD_OUT)["avg_at_k"]

    sides = {"infer": recipe.engines.infer, "train": recipe.engines.train}
    each = jax.vmap(measure, in_axes=(0, 0, None))
    return {f"held_out_{side}": each(params, keys, engine) for side, engine in sides.items()}


def vector_rows(keys: Sequence[str], metrics: Mapping[str, np.ndarray]) -> Frame:
    """Return the metrics by bin of pi_train [runs, steps, bins], a row per run, step, bin and metric."""
    frames = []
    for name in ("tokens_by_pi_train", *VECTORS):
        runs, steps, bins = metrics[name].shape
        columns = {
            "run": np.repeat(keys, steps * bins),
            "step": np.tile(np.repeat(np.arange(steps), bins), runs),
            "index": np.tile(np.arange(bins), runs * steps),
            "metric": name,
            "value": metrics[name].reshape(-1),
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _part_key(arm: str, wanted: Sequence[RunSpec]) -> str:
    content = [code_digest(), BASE, CHUNK, HELD_OUT, HELD_OUT_POINTS, arm]
    content += [[spec.initial_policy, dict(spec.changes)] for spec in wanted]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]
