"""Run-steps per second of one sweep: one pinned process per core, and Ray on as many nodes of one core.

Needs `python scripts/make_env.py ray`. The nodes are processes of this machine that talk over loopback, each
kept on a core of its own: what Ray itself costs, without a network. The smoke version leaves Ray out.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from experiments.benchmarks.sweep_cost import SMALL, SWEEP
from experiments.regimes import BASE
from simlab.core.experiment import Experiment, Run
from simlab.core.paths import checkout_root
from simlab.serving.open_engine import find_interpreter

RUNS_PER_BATCH, SLICES, STEPS = 4, 4, 200
# The first sweep of each kind compiles, and keeps the program for the second.
FIRST_STEPS = 20
LEAST = 0.8


@contextmanager
def nodes(python: Path, cores: list[int], cache: Path) -> Iterator[str]:
    """Start one node on each core, the first of them the head; give its address, and end them all."""
    port = random.randint(20_000, 50_000)
    address = f"127.0.0.1:{port}"
    started: list[subprocess.Popen] = []
    # A socket's path may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as sockets:
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={sockets}"]
        options = ["start", "--block", "--num-cpus=1", "--node-ip-address=127.0.0.1"]
        try:
            for core in cores:
                where = [f"--address={address}"] if started else head
                started.append(
                    subprocess.Popen(
                        [str(python.with_name("ray")), *options, *where],
                        env=surroundings(cache),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        preexec_fn=partial(os.sched_setaffinity, 0, {core}),
                    )
                )
                time.sleep(10)  # until it listens
            yield address
        finally:
            for node in started:
                node.terminate()
            for node in started:
                node.wait()


def python_of_ray() -> Path:
    """Return the interpreter of Ray's environment; exits saying how to build it."""
    python = find_interpreter("ray")
    if not python.is_file():
        raise SystemExit(f"bench_ray needs Ray, and {python} is not there: python scripts/make_env.py ray")
    return python


def surroundings(cache: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(checkout_root()), "SIMLAB_CACHE": str(cache)}


def seconds(python: Path, given: dict[str, Any], cache: Path) -> float:
    """Return what the runs of a sweep take, its start, its calibration and the first compilation apart."""
    taken, last = 0.0, given["base"]["steps"]
    for steps in dict.fromkeys((min(FIRST_STEPS, last), last)):
        with tempfile.TemporaryDirectory() as out:
            job = given | {"base": given["base"] | {"steps": steps}, "out": out}
            command = [str(python), "-c", SWEEP, json.dumps(job)]
            done = subprocess.run(command, env=surroundings(cache), capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr.strip())
            taken = float(done.stdout.split()[-1])
    return taken


def run(run: Run) -> None:
    base = {**BASE, "objective": "grpo+tis", "steps": STEPS} | (SMALL if run.smoke else {})
    count = RUNS_PER_BATCH * (1 if run.smoke else SLICES)
    cores = sorted(os.sched_getaffinity(0))
    run.configure(base=base, runs_per_batch=RUNS_PER_BATCH, runs=count, cores=len(cores))
    given = {"base": base, "over": {"seed": list(run.seeds(range(count)))}, "runs_per_batch": RUNS_PER_BATCH}
    python = Path(sys.executable) if run.smoke else python_of_ray()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        workers = 0 if run.smoke else len(cores)
        with run.phase("local"):
            found["one process per core"] = seconds(python, given | {"workers": workers}, cache)
        if not run.smoke:
            with run.phase("ray"), nodes(python, cores, cache) as address:
                where = {"executor": "ray", "address": address}
                found["Ray, one node per core"] = seconds(python, given | where, cache)
    rows = [
        {"executor": name, "places": len(cores), "seconds": s, "run_steps_per_s": count * base["steps"] / s}
        for name, s in found.items()
    ]
    run.table("executors", rows)
    for row in rows:
        run.report(f"{row['executor']}: {row['run_steps_per_s']:.1f} run-steps/s")


EXPERIMENT = Experiment(
    name="bench_ray",
    question="How many of a machine's run-steps per second are left when Ray hands them out?",
    decision_rule=f"Ray costs little if one node per core makes at least {LEAST:g} of the run-steps per "
    "second of one process per core.",
    run=run,
    minutes=6.0,
)
