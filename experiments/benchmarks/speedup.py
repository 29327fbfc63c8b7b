"""CPU time of compilation, step and rollout: at an earlier commit and now, engines as data and as constants.

CPU seconds depend less on what else the machine does than wall seconds. Old and new alternate.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import jax

from experiments.benchmarks.engine_speed import build_batch
from experiments.benchmarks.timing import interleave
from simlab.core.experiment import Experiment, Run
from simlab.core.paths import checkout_root
from simlab.sweeps.compile_cache import fixed_order_options
from simlab.training.step import rollout

PARENT = "7c42aac4bd2329a68b8618796215f7965950be5a"
"""The commit before the work on speed."""
PAIRS = ("f32/f32", "f32/bf16", "f32/fp8-s4-truncated")
ENGINES = ("f32", "bf16", "fp8-e4m3", "fp8-s4-truncated")
RUNS = 8
FEW, MANY = 10, 30
"""Steps of sweeps whose difference is the time of a step; both compile the same functions."""
LIMITS = {"step, before / now": 1.8, "emulated step / float32": 1.3}
SCRIPT = """
import json, sys, tempfile, time
from simlab.sweeps import sweep
given = json.loads(sys.argv[1])
def measure(steps, first):
    start = time.process_time()
    with tempfile.TemporaryDirectory() as out:
        seeds = list(range(first, first + given["runs"]))
        sweep(given["base"] | {"steps": steps}, {"seed": seeds}, out, workers=0, yes=True, **given["options"])
    return time.process_time() - start
few, many = given["steps"]
print(json.dumps([measure(few, 0), measure(few, 100), measure(many, 200)]))
"""


def extract_package(commit: str, folder: Path) -> Path:
    """Write the package as it was at `commit` to `folder`; return the folder to import it from."""
    archive = subprocess.run(
        ["git", "-C", checkout_root(), "archive", commit, "simlab"], check=True, capture_output=True
    )
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as file:
        file.extractall(folder, filter="data")
    return folder


def time_version(package: Path, pair: str, options: dict[str, int], smoke: bool) -> dict[str, float]:
    """Return what a sweep costs in a new process that imports the package from a folder."""
    small = {"name": "tiny-dense", "hidden_size": 32, "num_hidden_layers": 1}
    given = {
        "base": {
            "engines": pair,
            "objective": "grpo",
            "task": "add",
            "model": small if smoke else "tiny-dense",
        },
        "runs": RUNS,
        "options": options,
        "steps": [1, 2] if smoke else [FEW, MANY],
    }
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"PYTHONPATH": str(package), "SIMLAB_CACHE": cache}
        command = [sys.executable, "-c", SCRIPT, json.dumps(given)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=cache)
    first, again, longer = json.loads(done.stdout.splitlines()[-1])
    few, many = given["steps"]
    return {
        "compilation": first - again,
        "step": (longer - again) / (many - few),
    }


def compare_versions(run: Run) -> list[dict[str, Any]]:
    """Return the rows of both versions: quantity, engine pair, version, CPU seconds."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        now = checkout_root(), {"runs_per_batch": RUNS}
        # A clone without history has no earlier commit.
        before = now if run.smoke else (extract_package(PARENT, Path(folder)), {"width": RUNS})
        for pair in run.track(PAIRS[:1] if run.smoke else PAIRS, "pairs"):
            for version, (package, options) in (("before", before), ("now", now)):
                for quantity, seconds in time_version(package, pair, options, run.smoke).items():
                    rows.append(
                        {"quantity": quantity, "engines": pair, "version": version, "cpu_seconds": seconds}
                    )
    return rows


def compile_rollout(engine: str, form: str, smoke: bool) -> tuple[Callable[[], Any], float]:
    """Return the compiled rollout of a batch under one engine, and the CPU seconds of its compilation."""
    recipe, state = build_batch(engine, 2 if smoke else RUNS, smoke, form == "constants")
    start = time.process_time()
    function = jax.jit(jax.vmap(rollout), compiler_options=fixed_order_options())
    compiled = function.lower(recipe, state).compile()
    return lambda: jax.block_until_ready(compiled(recipe, state)), time.process_time() - start


def compare_forms(run: Run, seed: int) -> list[dict[str, Any]]:
    """Return CPU milliseconds of a rollout of a batch, engines as data and as constants, interleaved."""
    engines = ENGINES[:2] if run.smoke else ENGINES
    cases = [(engine, form) for engine in engines for form in ("data", "constants")]
    made = [compile_rollout(engine, form, run.smoke) for engine, form in run.track(cases, "forms")]
    seconds = interleave(run, [call for call, _ in made], cpu_seconds, 2 if run.smoke else 10, seed)
    return [
        {"engine": engine, "form": form, "cpu_ms": 1e3 * float(least), "compile_cpu_seconds": compiling}
        for (engine, form), (_, compiling), least in zip(cases, made, seconds.min(axis=0), strict=True)
    ]


def cpu_seconds(call: Callable[[], Any]) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def run(run: Run) -> None:
    (seed,) = run.seeds([0])
    run.configure(parent=PARENT, runs=RUNS, steps=[FEW, MANY], limits=LIMITS, load=list(os.getloadavg()))
    run.table("rollouts", compare_forms(run, seed))
    rows = compare_versions(run)
    run.table("speed", rows)
    seconds = {(row["quantity"], row["engines"], row["version"]): row["cpu_seconds"] for row in rows}
    pairs = list(dict.fromkeys(row["engines"] for row in rows))
    for pair in pairs:
        for quantity in ("compilation", "step"):
            ratio = seconds[quantity, pair, "before"] / seconds[quantity, pair, "now"]
            run.report(f"{pair}, {quantity}, before / now: {ratio:.2f}")
    for pair in pairs[1:]:
        ratio = seconds["step", pair, "now"] / seconds["step", pairs[0], "now"]
        limit = LIMITS["emulated step / float32"]
        run.report(f"{pair}, step / float32: {ratio:.2f} (at most {limit} wanted)")


EXPERIMENT = Experiment(
    name="bench_speedup",
    question="How much less CPU time do compilation and step take than before the work on their speed?",
    decision_rule="In one run, old and new alternating, in CPU seconds: the step of a batch of 8 takes the "
    f"old version at least {LIMITS['step, before / now']} times as long, and an emulated step at most "
    f"{LIMITS['emulated step / float32']} times a float32 one.",
    run=run,
    minutes=12.0,
    figures=("speedup",),
)
