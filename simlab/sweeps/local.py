"""The local executor: one process per core on a CPU, one per device where there are several GPUs.

Neither `concurrent.futures` nor `loky`: workers of both outlive a killed parent (measured, Python 3.11, loky
3.7), which `tests/sweeps/test_kill.py` forbids, and the former runs an unguarded script anew. No `filelock`:
it needs a file per run, whose removal races with the next lock; here a run is a byte of one file.
"""

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax

from simlab.core.atomic import write_atomically
from simlab.core.backend import THREADS, compute_on_one_thread
from simlab.core.json_value import Json
from simlab.core.progress import console
from simlab.sweeps.execute import Report, work
from simlab.sweeps.forecast import Stopwatch, expected_minutes
from simlab.sweeps.monitor import LIVE_FOLDER, Monitor, remove_job, show_progress
from simlab.sweeps.own_records import collect_records
from simlab.sweeps.plan import Plan
from simlab.sweeps.policy_training import expected_training_minutes, missing_policies, train_policies
from simlab.sweeps.result_cache import ResultCache

POLL_SECONDS = 0.2
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
# Status of a worker whose last line names the error.
CLEAR = 2


class StoppedError(RuntimeError):
    """The user declined to start the sweep."""


class WorkerError(RuntimeError):
    """A worker process ended before its work was done."""


def compute(
    plan: Plan,
    cache: ResultCache,
    agreed: Callable[[float], bool],
    watch: bool,
    checkpoint_seconds: float,
    workers: int | None,
) -> float:
    """Compute the missing runs of `plan`; return the seconds that it took.

    `agreed` gets the expected minutes and returns whether to continue. Raises `StoppedError` if not, and
    `WorkerError` if a process ends before its work is done.
    """
    count = _processes(plan, workers, len(missing_policies(plan, cache)))
    trainers = count if jax.default_backend() == "cpu" else 0
    check_agreement(plan, cache, agreed, count, trainers)
    began = time.perf_counter()
    if not trainers:
        train_policies(plan, cache)
    with running_job(plan, cache, checkpoint_seconds, watch) as (job, show):
        if count == 0:
            with record_progress(job, 0, Stopwatch(plan), lambda _: show()) as report:
                work(plan, cache, report, every=checkpoint_seconds)
        else:
            _work_in_processes(plan, cache, job, count, show)
    return time.perf_counter() - began


def check_agreement(
    plan: Plan, cache: ResultCache, agreed: Callable[[float], bool], processes: int, trainers: int = 0
) -> None:
    """Raise `StoppedError` unless the expected minutes are `agreed` to.

    `trainers` of the processes train the initial policies; with none, this process does.
    """
    completed = {key: cache.steps_completed(key) for key in plan.missing_keys}
    training = expected_training_minutes(plan, cache, trainers)
    if not agreed(expected_minutes(plan, processes, completed) + training):
        raise StoppedError("stopped before anything was computed")


@contextlib.contextmanager
def running_job(
    plan: Plan, cache: ResultCache, checkpoint_seconds: float, watch: bool
) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Write the job file for the duration of the work; yield it and a function that shows the state."""
    job = _write_job(plan, cache.folder, checkpoint_seconds)
    try:
        with show_progress(Monitor(cache.folder, job), watch) as show:
            yield job, show
    finally:
        remove_job(job)


def _processes(plan: Plan, workers: int | None, policies: int) -> int:
    """Return the number of workers. On a CPU, they also train the missing `policies`."""
    slots = {"cpu": len(os.sched_getaffinity(0)), "gpu": jax.local_device_count()}
    tasks = max(plan.batches, policies if jax.default_backend() == "cpu" else 0)
    useful = min(slots.get(jax.default_backend(), 0), tasks)
    wanted = (useful if useful > 1 else 0) if workers is None else workers
    can_compute = jax.default_backend() != "cpu" or compute_on_one_thread()
    return wanted if can_compute else max(1, wanted)


def _write_job(plan: Plan, folder: Path, checkpoint_seconds: float) -> Path:
    """Write the job file that workers and `simlab watch` read; its name is unique to this call."""
    job = {
        "pid": os.getpid(),
        "host": platform.node(),
        "runs_per_batch": plan.runs_per_batch,
        "checkpoint_seconds": checkpoint_seconds,
        "missing": plan.missing_keys,
        "runs": [{"run": run.key, "arm": run.arm, "config": run.config.as_dict()} for run in plan.runs],
        # Where the worker finds the modules of user-defined components, and those that stand in no module.
        "sys_path": [os.path.abspath(entry) for entry in sys.path],
        "records": collect_records(run.config.table for run in plan.runs),
    }
    path = folder / LIVE_FOLDER / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}.json"
    return write_atomically(path, lambda file: file.write(json.dumps(job).encode()))


def _work_in_processes(
    plan: Plan, cache: ResultCache, job: Path, count: int, show: Callable[[], None]
) -> None:
    policies, trained = list(missing_policies(plan, cache)), 0
    with _start_workers(cache.folder, job, count) as processes:
        # A worker that still loads its compiled function when all is computed is not waited for.
        while cache.missing(plan.missing_keys) and any(process.poll() is None for process in processes):
            _check(processes, job)
            if trained < len(policies) and trained < (now := sum(path.is_file() for path in policies)):
                trained = now
                console.print(f"initial policies trained: {trained} of {len(policies)}", highlight=False)
            show()
            time.sleep(POLL_SECONDS)
        time.sleep(POLL_SECONDS)
        show()
        _check(processes, job)


@contextlib.contextmanager
def _start_workers(folder: Path, job: Path, count: int) -> Iterator[list[subprocess.Popen]]:
    """Start the workers. They end when this process ends, even if it is killed."""
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
    """Return the environment of process `index`: one thread on a CPU, one visible device on a GPU.

    No process is bound to a core: XLA would compile on this core alone. Devices that the environment names
    already are shared out.
    """
    if backend == "cpu":
        return {**environment, THREADS: "1"}
    if backend != "gpu":
        return dict(environment)
    devices = environment.get(VISIBLE_DEVICES) or ",".join(map(str, range(jax.local_device_count())))
    own = devices.split(",")
    # The parent holds most of the memory of its devices, so a worker takes what it needs as it needs it.
    memory = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return {**memory, **environment, VISIBLE_DEVICES: own[index % len(own)]}


def _check(processes: list[subprocess.Popen], job: Path) -> None:
    for index, process in enumerate(processes):
        if process.poll():
            log = job.with_suffix(f".{index}.log").read_text(errors="replace").strip()
            last = log.splitlines()[-1] if log else "no output"
            if process.returncode == CLEAR:
                raise WorkerError(last)
            console.print(log, highlight=False, markup=False)
            raise WorkerError(f"a worker ended with status {process.returncode}: {last}")


@contextlib.contextmanager
def record_progress(job: Path, number: int, *others: Callable[..., None]) -> Iterator[Report]:
    """Yield a function that appends an event to the file of worker `number` and passes it to `others`."""
    with open(job.with_suffix(f".{number}.jsonl"), "a") as file:

        def report(event: dict[str, Json]) -> None:
            file.write(json.dumps(event) + "\n")
            file.flush()
            for other in others:
                other(event)

        yield report
