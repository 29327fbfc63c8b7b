"""Measure compilation, step and rollout at an earlier commit and now, with engines in both forms.

CPU seconds depend less on other processes than wall seconds. Runs of the two versions alternate.
"""

import os
import subprocess
import tarfile
import tempfile
import time
from functools import partial
from io import BytesIO
from pathlib import Path

import jax
import numpy as np

from experiments.benchmarks.engine_speed import SMALL, build_batch
from experiments.benchmarks.timing import Call, interleave, time_call, time_sweeps
from simlab.core.json_value import Json
from simlab.core.paths import checkout_root
from simlab.studies.experiment import Experiment, ExperimentContext
from simlab.training.step import rollout

PARENT = "7c42aac4bd2329a68b8618796215f7965950be5a"
"""The commit before the speed improvements."""
PAIRS = ("f32/f32", "f32/bf16", "f32/fp8-s2-truncated-all")
ENGINES = ("f32", "bf16", "fp8-e4m3", "fp8-s2-truncated-all")
RUNS_PER_BATCH, PROCESSES = 8, 2
FLAGSHIP = {"model": "tiny-llama", "group_size": 16, "minibatches": 4}
FEW, MANY = 20, 160
"""Steps of sweeps whose difference is the time of a step; both compile the same functions."""
LIMITS = {"step, before / now": 1.8, "emulated step / float32": 1.3, "run-steps/s": 90.0}


def extract_package(commit: str, folder: Path) -> Path:
    """Write the package as it was at `commit` to `folder`; return the folder to import it from."""
    archive = subprocess.run(
        ["git", "-C", checkout_root(), "archive", commit, "simlab"], check=True, capture_output=True
    )
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as file:
        file.extractall(folder, filter="data")
    return folder


def time_version(
    package: Path, pair: str, options: dict[str, int], smoke: bool
) -> dict[str, tuple[float, float]]:
    """Return wall and CPU seconds by quantity, of sweeps of the package in a folder, in a new process.

    `compilation` is the time of a first sweep beyond that of a second, `step` that of one step of the batches
    of all processes.
    """
    runs, workers = (2, 0) if smoke else (RUNS_PER_BATCH * PROCESSES, PROCESSES)
    few, many = (1, 2) if smoke else (FEW, MANY)
    # Without renamed fields; their defaults are those of the flagship in both versions.
    base = {"engines": pair, "objective": "grpo", "task": "add", **(SMALL if smoke else FLAGSHIP)}
    with tempfile.TemporaryDirectory() as cache:
        calls = [
            {"base": base | {"steps": steps}, "over": {"seed": list(range(seed, seed + runs))}}
            | {"out": f"{cache}/{seed}", "workers": workers, **options}
            for seed, steps in ((0, few), (100, few), (200, many))
        ]
        first, again, longer = np.diff(time_sweeps(calls, cache, package)[1], axis=0)
    return {"compilation": tuple(first - again), "step": tuple((longer - again) / (many - few))}


def compare_versions(run: ExperimentContext) -> list[dict[str, Json]]:
    """Return the rows of both versions: quantity, engine pair, version, wall and CPU seconds."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        now = checkout_root(), {"runs_per_batch": 2 if run.smoke else RUNS_PER_BATCH}
        # A clone without history has no earlier commit.
        before = now if run.smoke else (extract_package(PARENT, Path(folder)), {"width": RUNS_PER_BATCH})
        for pair in run.track(PAIRS[:1] if run.smoke else PAIRS, "pairs"):
            for version, (package, options) in (("before", before), ("now", now)):
                for quantity, (wall, cpu) in time_version(package, pair, options, run.smoke).items():
                    speed = RUNS_PER_BATCH * PROCESSES / wall if quantity == "step" else np.nan
                    row = {"quantity": quantity, "engines": pair, "version": version, "seconds": wall}
                    rows.append(row | {"cpu_seconds": cpu, "run_steps_per_s": speed})
    return rows


def compile_rollout(engine: str, form: str, smoke: bool) -> tuple[Call, float]:
    """Return the compiled rollout of a batch under one engine, and the CPU seconds of its compilation."""
    size = 2 if smoke else RUNS_PER_BATCH
    recipe, state = build_batch(engine, size, smoke, is_constant=form == "constants")
    start = time.process_time()
    compiled = jax.jit(jax.vmap(rollout)).lower(recipe, state).compile()
    return lambda: jax.block_until_ready(compiled(recipe, state)), time.process_time() - start


def compare_forms(run: ExperimentContext, seed: int) -> list[dict[str, str | float]]:
    """Return CPU milliseconds of a rollout of a batch, engines as arguments and as constants, interleaved."""
    engines = ENGINES[:2] if run.smoke else ENGINES
    cases = [(engine, form) for engine in engines for form in ("arguments", "constants")]
    made = [compile_rollout(engine, form, run.smoke) for engine, form in run.track(cases, "forms")]
    timed = partial(time_call, clock=time.process_time)
    seconds = interleave(run, [call for call, _ in made], timed, 2 if run.smoke else 10, seed)
    return [
        {"engine": engine, "form": form, "cpu_ms": 1e3 * float(least), "compile_cpu_seconds": compiling}
        for (engine, form), (_, compiling), least in zip(cases, made, seconds.min(axis=0), strict=True)
    ]


def run(run: ExperimentContext) -> None:
    (seed,) = run.seeds([0])
    run.configure(parent=PARENT, runs=RUNS_PER_BATCH, processes=PROCESSES, steps=[FEW, MANY], limits=LIMITS)
    run.configure(load=list(os.getloadavg()))
    run.table("rollouts", compare_forms(run, seed))
    rows = compare_versions(run)
    run.table("speed", rows)
    by_case = {(row["quantity"], row["engines"], row["version"]): row for row in rows}
    pairs = list(dict.fromkeys(row["engines"] for row in rows))
    for pair in pairs:
        for quantity in ("compilation", "step"):
            old, new = (by_case[quantity, pair, version] for version in ("before", "now"))
            ratios = [old[unit] / new[unit] for unit in ("seconds", "cpu_seconds")]
            run.report(f"{pair}, {quantity}, before / now: wall {ratios[0]:.2f}, CPU {ratios[1]:.2f}")
        speed = by_case["step", pair, "now"]["run_steps_per_s"]
        run.report(f"{pair}: {speed:.1f} run-steps/s (at least {LIMITS['run-steps/s']:g} wanted)")
    for pair in pairs[1:]:
        steps = [by_case["step", each, "now"]["cpu_seconds"] for each in (pair, pairs[0])]
        limit = LIMITS["emulated step / float32"]
        run.report(f"{pair}, step / float32: {steps[0] / steps[1]:.2f} (at most {limit} wanted)")


EXPERIMENT = Experiment(
    name="bench_speedup",
    question="How much less time do compilation and step take than before the work on their speed?",
    decision_rule="In one run, old and new alternating, in CPU seconds: the step of a batch of 8 takes the "
    f"old version at least {LIMITS['step, before / now']} times as long, or the machine makes "
    f"{LIMITS['run-steps/s']:g} run-steps/s; an emulated step takes at most "
    f"{LIMITS['emulated step / float32']} times a float32 one.",
    run=run,
    minutes=15.0,
)
