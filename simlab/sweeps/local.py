"""The local executor: one pinned process per core on a CPU, one per device where there are several GPUs."""

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import jax

from simlab.core.atomic import write_atomically
from simlab.core.progress import console
from simlab.sweeps.execute import calibrate, train_warm_starts, work
from simlab.sweeps.monitor import LIVE_FOLDER, Monitor, remove_job, showing
from simlab.sweeps.own_records import carried
from simlab.sweeps.plan import Plan
from simlab.sweeps.store import Store

POLL_SECONDS = 0.2
# Two pinned processes share caches and memory: together they were 1.7 times one of them.
GAIN = 0.85
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
# Status of a worker that has said in its last line what is wrong.
CLEAR = 2


class StoppedError(RuntimeError):
    """The sweep was not started, because somebody said no."""


class WorkerError(RuntimeError):
    """A worker process has ended before its work did."""


def compute(
    plan: Plan,
    store: Store,
    agreed: Callable[[float], bool],
    watch: bool,
    checkpoint_seconds: float,
    workers: int | None,
) -> dict[str, float]:
    """Compute the missing runs of `plan`; return seconds by phase.

    `agreed` gets the expected minutes and says whether to go on; raises `StoppedError` if not, and
    `WorkerError` for a process that does not do its work.
    """
    count = _processes(plan, workers)
    train_warm_starts(plan, store)
    job = write_job(plan, store.folder, count, checkpoint_seconds)
    try:
        with showing(Monitor(store.folder, job), watch) as show:
            if count == 0:
                return _here(plan, store, job, agreed, show, checkpoint_seconds)
            return _in_processes(plan, store, job, count, agreed, show)
    finally:
        remove_job(job)


def expected_minutes(plan: Plan, calibrations: Sequence[Mapping[str, float]], processes: int) -> float:
    """Return the expected time from calibrations of some groups, the others scaled by their cost."""
    step = sum(c["step"] / c["cost"] for c in calibrations) / len(calibrations)
    compile_seconds = sum(c["compile"] for c in calibrations) / len(calibrations)
    busy = sum(group.slices(plan.width) * group.steps * step * group.cost for group in plan.groups)
    busy += max(0, len(plan.groups) - len(calibrations)) * compile_seconds
    speed = max(1, processes) * (GAIN if processes > 1 else 1.0)
    longest = max(group.steps * step * group.cost for group in plan.groups)
    return max(busy / speed, longest) / 60


def _processes(plan: Plan, workers: int | None) -> int:
    if workers is not None and workers < 0:
        raise ValueError(f"workers {workers}; allowed: 0 for this process, or a number of processes")
    if workers is None:
        places = {"cpu": len(os.sched_getaffinity(0)), "gpu": jax.local_device_count()}
        workers = places.get(jax.default_backend(), 0)
        slices = sum(group.slices(plan.width) for group in plan.groups)
        workers = 0 if min(workers, slices) <= 1 else min(workers, slices)
    return workers


def write_job(plan: Plan, folder: Path, count: int, checkpoint_seconds: float) -> Path:
    """Write what workers and a watcher have to know; the name is that of this call."""
    missing = [run.key for group in plan.groups for run in group.runs]
    job = {
        "pid": os.getpid(),
        "workers": count,
        "width": plan.width,
        "checkpoint_seconds": checkpoint_seconds,
        "missing": missing,
        "runs": [{"run": run.key, "arm": run.arm, "config": run.config.as_dict()} for run in plan.runs],
        # Where the worker finds the modules of own records, and those that stand in no module.
        "sys_path": [os.path.abspath(entry) for entry in sys.path],
        "records": carried(run.config.table for run in plan.runs),
    }
    path = folder / LIVE_FOLDER / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.json"
    return write_atomically(path, lambda file: file.write(json.dumps(job).encode()))


def _here(
    plan: Plan, store: Store, job: Path, agreed: Callable, show: Callable, every: float
) -> dict[str, float]:
    began = time.perf_counter()
    measured = [calibrate(plan.groups[0], plan.width, store)]
    if not agreed(expected_minutes(plan, measured, 0)):
        raise StoppedError("stopped before anything was computed")
    calibrated = time.perf_counter()
    with open(job.with_suffix(".0.jsonl"), "a") as events:

        def report(event: dict[str, Any]) -> None:
            write_event(events, event)
            show()

        work(plan, store, report, every=every)
    return {"calibration": calibrated - began, "runs": time.perf_counter() - calibrated}


def _in_processes(
    plan: Plan, store: Store, job: Path, count: int, agreed: Callable, show: Callable
) -> dict[str, float]:
    began = time.perf_counter()
    with _started(store.folder, job, count) as processes:
        measured = _calibrations(job, processes, min(count, len(plan.groups)))
        if not agreed(expected_minutes(plan, measured, count)):
            raise StoppedError("stopped before anything was computed")
        calibrated = time.perf_counter()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        wanted = [run.key for group in plan.groups for run in group.runs]
        # A worker that still loads its program when all is computed is not waited for.
        while store.missing(wanted) and any(process.poll() is None for process in processes):
            show()
            time.sleep(POLL_SECONDS)
        time.sleep(POLL_SECONDS)
        show()
        _check(processes, job)
    return {"calibration": calibrated - began, "runs": time.perf_counter() - calibrated}


@contextlib.contextmanager
def _started(folder: Path, job: Path, count: int) -> Iterator[list[subprocess.Popen]]:
    """Start the workers, each on a core or device of its own; they end with this process, however it ends."""
    backend = jax.default_backend()
    processes = []
    try:
        for index in range(count):
            log = open(job.with_suffix(f".{index}.log"), "wb")  # noqa: SIM115
            command = [sys.executable, "-m", "simlab.sweeps.worker", str(folder), str(job), str(index)]
            environment = worker_environment(os.environ, index, backend)
            with log:
                processes.append(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)
                )
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
            process.wait()


def worker_environment(environment: Mapping[str, str], index: int, backend: str) -> dict[str, str]:
    """Return what the process `index` starts with: a core of its own on a CPU, one device to see elsewhere.

    Devices that the environment names already are shared out; only GPUs are told apart.
    """
    if backend == "cpu":
        cores = sorted(os.sched_getaffinity(0))
        return {**environment, "SIMLAB_CORE": str(cores[index % len(cores)])}
    if backend != "gpu":
        return dict(environment)
    devices = environment.get(VISIBLE_DEVICES) or ",".join(map(str, range(jax.local_device_count())))
    own = devices.split(",")
    # The parent holds most of the memory of its devices, so a worker takes what it needs as it needs it.
    memory = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return {**memory, **environment, VISIBLE_DEVICES: own[index % len(own)]}


def _calibrations(job: Path, processes: list[subprocess.Popen], count: int) -> list[Mapping[str, float]]:
    """Wait until the first `count` workers have measured a program each."""
    found: dict[int, Mapping[str, float]] = {}
    while len(found) < count:
        _check(processes, job)
        for index in range(count):
            for event in read_events(job.with_suffix(f".{index}.jsonl")):
                if event["event"] == "calibrated":
                    found[index] = event
        time.sleep(POLL_SECONDS)
    return list(found.values())


def _check(processes: list[subprocess.Popen], job: Path) -> None:
    for index, process in enumerate(processes):
        if process.poll():
            log = job.with_suffix(f".{index}.log").read_text(errors="replace").strip()
            last = log.splitlines()[-1] if log else "no output"
            if process.returncode == CLEAR:
                raise WorkerError(last)
            console.print(log, highlight=False, markup=False)
            raise WorkerError(f"a worker ended with status {process.returncode}: {last}")


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events in a file, without a line that is not whole."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def write_event(file: IO[str], event: Mapping[str, Any]) -> None:
    """Append one event as a line."""
    file.write(json.dumps(event) + "\n")
    file.flush()
