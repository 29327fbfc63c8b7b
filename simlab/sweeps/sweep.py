"""`simlab.sweep`: check, plan, forecast, compute the missing runs, write the tables."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import UnionType

import pandas as pd
from rich.text import Text

from simlab.core.backend import compute_on_one_thread, enable_compile_cache
from simlab.core.catalog import lookup, shorten
from simlab.core.json_value import Json
from simlab.core.manifest import MANIFEST_NAME, build_manifest, write_manifest
from simlab.core.progress import console, describe_minutes
from simlab.core.results import write_table
from simlab.sweeps import local, ray_executor
from simlab.sweeps.batch_size import default_runs_per_batch
from simlab.sweeps.column_names import with_aliases
from simlab.sweeps.config import RunConfig
from simlab.sweeps.grids import Grid, as_grid
from simlab.sweeps.monitor import remove_dead_jobs
from simlab.sweeps.plan import Plan, PlannedRun, expand, make_plan, read_configs
from simlab.sweeps.result import SweepResult
from simlab.sweeps.result_cache import VIEW, ResultCache
from simlab.sweeps.tables import runs_table
from simlab.training.loop import CHECKPOINT_SECONDS

ASK_ABOVE_MINUTES = 5.0


EXECUTORS: dict[str, Callable[[int | None, str | None], Callable[..., float]]] = {
    "local": lambda workers, _: partial(local.compute, workers=workers),
    "ray": lambda _, address: partial(ray_executor.compute, address=address),
}


def sweep(
    base: RunConfig | Mapping[str, Json],
    over: Grid | Mapping[str, Json] | None = None,
    out: str | Path = "runs/sweep",
    *,
    name: str = "sweep",
    runs_per_batch: int | None = None,
    workers: int | None = None,
    executor: str = "local",
    address: str | None = None,
    yes: bool = False,
    watch: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> SweepResult:
    """Compute all runs of a grid that are missing from `out`, and return all runs.

    If a sweep was killed, call it again: it resumes and writes the same bytes.

    Args:
        base: a run in plain values, see `RunConfig`; fields that `over` gives may be missing.
        over: a table of axes for all combinations, or a grid of `grid`, `listed`, `sampled` and their
            products with `*`. None: one run.
        out: Result directory; `simlab.sweeps.tables` documents its contents. Sweeps may share one.
        name: printed with the plan and stored in the manifest.
        runs_per_batch: runs computed in parallel; part of the key of a run. Default: 4 on a CPU; on a
            GPU 96, or as many as fit in its memory.
        workers: number of worker processes; 0: this process. Default: one per core on a CPU, one per GPU if
            there are several, otherwise this process. On a CPU each run uses one thread: if JAX has already
            started with more threads in this process (see `compute_on_one_thread`), 0 means 1.
        executor: `local`, in `workers` processes of this machine, or `ray`, on the cluster at `address` (see
            `simlab.sweeps.ray_executor`).
        address: Address of the Ray head, `host:6379`. Default: the head on this machine.
        yes: start without confirmation. Only a sweep in a terminal asks for confirmation.
        watch: redraw curves in `out/curves.png`.
        checkpoint_seconds: longest time between two checkpoints of a run, rounded up to a chunk of steps; a
            kill costs at most that much work.

    Returns:
        The finished runs, read from `out`.

    Raises:
        ValueError: before any compute, naming the field, the value and what is allowed.

    Example:
        >>> base = {"task": "add", "warm_start": "add-tiny-llama-0", "steps": 100}
        >>> result = sweep(base, {"infer_mantissa_bits": [2, 3, 4], "seed": range(2)})  # doctest: +SKIP
    """
    began = time.perf_counter()
    compute_on_one_thread()
    enable_compile_cache()
    folder, points = Path(out), as_grid(over)
    _check_number("runs_per_batch", 1 if runs_per_batch is None else runs_per_batch, int, 1)
    _check_number("workers", 0 if workers is None else workers, int, 0)
    _check_number("checkpoint_seconds", checkpoint_seconds, int | float, 0)
    compute = lookup(EXECUTORS, executor, "executor")(workers, address)
    plan, cache = prepare(base, points, folder, runs_per_batch)
    console.print(f"{name}: {plan.describe()}", highlight=False)
    remove_dead_jobs(folder)
    cache.remove_stale()
    timings = {"plan": time.perf_counter() - began}
    if plan.missing:
        cache.make_folder()

        def agree(minutes: float) -> bool:
            timings["expected"] = 60 * minutes
            return _ask_to_start(minutes, yes)

        timings["runs"] = compute(plan, cache, agree, watch, checkpoint_seconds)
    timings["computing"] = cache.computing_seconds(run.key for run in plan.runs)
    timings["total"] = time.perf_counter() - began
    result = _write_view(cache, plan, name, timings)
    for line in result.problems():
        console.print(line, highlight=False)
    return result


def _check_number(name: str, value: object, kind: type | UnionType, low: int) -> None:
    if not isinstance(value, kind) or not value >= low:  # type: ignore[operator]
        word = "an integer" if kind is int else "a number"
        raise ValueError(f"{name} must be {word} >= {low}, got {shorten(value)}.")


def prepare(
    base: RunConfig | Mapping[str, Json], points: Grid, folder: Path, runs_per_batch: int | None
) -> tuple[Plan, ResultCache]:
    """Check every run of the grid and plan the runs missing from `folder`. None: default of the device."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out must be a folder, got the file {folder}.")
    configs = list(read_configs(base, points))
    recipes = (config.recipe for config in configs)
    count = default_runs_per_batch(recipes) if runs_per_batch is None else runs_per_batch
    runs, cache = expand(base, points, count, configs), ResultCache(folder)
    return make_plan(runs, cache.missing(run.key for run in runs), count), cache


def _ask_to_start(minutes: float, yes: bool) -> bool:
    """Print the expected time; on a terminal, wait for confirmation if that is long."""
    console.print(f"expected: {describe_minutes(minutes)}", highlight=False)
    if yes or minutes < ASK_ABOVE_MINUTES or not (console.is_terminal and sys.stdin.isatty()):
        return True
    return console.input(Text("continue? [y/N] ")).strip().lower() in ("y", "yes")


def _write_view(cache: ResultCache, plan: Plan, name: str, timings: Mapping[str, float]) -> SweepResult:
    """Write the tables of this sweep. Their bytes do not depend on how it was computed."""
    records = [dict(cache.record(run.key)) for run in plan.runs]
    for record, run in zip(records, plan.runs, strict=True):
        record["columns"] = with_aliases(record["columns"], run.config.aliases)
    table = runs_table(records, [run.arm for run in plan.runs])
    result = SweepResult(cache.folder, table)
    cache.lock_view()
    try:
        (cache.folder / MANIFEST_NAME).unlink(missing_ok=True)
        tables = {"runs": table, "steps": result.steps(), "vectors": result.vectors()}
        for table_name, frame in tables.items():
            write_table(cache.folder, table_name, frame)
        rows = {table_name: len(frame) for table_name, frame in tables.items()}
        seeds = sorted({run.config.seed for run in plan.runs})
        # Kept: another sweep into this folder may be about to replace the file.
        result.manifest = build_manifest(name, _config(plan), seeds, timings, rows)
        write_manifest(cache.folder, result.manifest)
    finally:
        cache.release([VIEW])
    return result


def _config(plan: Plan) -> dict[str, Json]:
    first: PlannedRun = plan.runs[0]
    varied = SweepResult.varying(pd.DataFrame([run.config.as_dict() for run in plan.runs]))
    common = {field: value for field, value in first.config.as_dict().items() if field not in varied}
    return {
        "runs_per_batch": plan.runs_per_batch,
        "arms": list(dict.fromkeys(run.arm for run in plan.runs)),
        "computed": plan.missing,
        # JSON has no infinity.
        "common": json.loads(json.dumps(common), parse_constant=str),
    }
