"""The Ray executor: slices are tasks on a cluster, and their metrics return to the driver's result cache.

Only the driver accesses the sweep's folder, so nodes need not share a disk. On one kind of device, a run has
the same bytes as under the local executor.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from simlab.core.plugins import import_module, is_installed
from simlab.sweeps.compile_cache import keep_programs
from simlab.sweeps.config import code_digest
from simlab.sweeps.execute import (
    Report,
    begun,
    chunk_event,
    keep_lanes,
    segment,
    train_warm_starts,
    unfinished,
    write_lanes,
)
from simlab.sweeps.forecast import expected_minutes
from simlab.sweeps.local import StoppedError, recording, write_job
from simlab.sweeps.monitor import Monitor, remove_job, showing
from simlab.sweeps.own_records import carried
from simlab.sweeps.plan import Plan, PlannedRun
from simlab.sweeps.program import Lane
from simlab.sweeps.store import Store

POLL_SECONDS = 0.5
ACQUIRE_SECONDS = 1.0
KNOCK_SECONDS = 10.0


class ClusterError(RuntimeError):
    """Ray is not installed, or no cluster answers."""


def compute(
    plan: Plan,
    store: Store,
    agreed: Callable[[float], bool],
    watch: bool,
    checkpoint_seconds: float,
    address: str | None,
) -> dict[str, float]:
    """Compute the missing runs of `plan` on the cluster at `address`; return seconds by phase.

    `address` is that of the head (`host:6379`), `local` for a cluster of this machine that ends with the
    sweep, or None for the cluster that runs here. Every node needs this code: a task elsewhere refuses. A
    task advances a slice by `checkpoint_seconds`, and where its worker or node dies is run again; when the
    driver dies its tasks end, and the next sweep goes on from what came back. `agreed` is as for the local
    executor.
    Raises `ClusterError` where Ray is not installed or no cluster answers, and `RuntimeError` for a task that
    fails.
    """
    if carried(run.config.table for run in plan.runs):
        raise ClusterError("executor ray needs own records in module files, named as 'mymodule:name'")
    ray = _connected(address)
    began = time.perf_counter()
    try:
        places = int(ray.cluster_resources().get(_place(), 1))
        if not agreed(expected_minutes(plan, places)):
            raise StoppedError("stopped before anything was computed")
        job = write_job(plan, store.folder, 1, checkpoint_seconds)
        try:
            train_warm_starts(plan, store)
            with (
                showing(Monitor(store.folder, job), watch) as show,
                recording(job, 0) as report,
            ):
                _work(ray, plan, store, report, show, checkpoint_seconds)
        finally:
            remove_job(job)
    finally:
        ray.shutdown()
    return {"runs": time.perf_counter() - began}


def _connected(address: str | None) -> Any:
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise ClusterError("executor ray needs Ray: pip install 'simlab[ray]'") from error
    folders = [os.path.abspath(entry) for entry in sys.path if not is_installed(entry)]
    try:
        _knock(address)
        ray.init(
            address=address or "auto",
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False,
            # Tasks import own records from where the driver does.
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(folders)}},
        )
    except (OSError, ValueError) as error:  # a refused connection is an OSError
        raise ClusterError(
            f"no Ray cluster at {address or 'this machine'}: {error}; start one with `ray start --head`, "
            "or take --address local"
        ) from error
    return ray


def _knock(address: str | None) -> None:
    """Raise `OSError` where nothing listens at host:port, for which Ray would wait for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), KNOCK_SECONDS).close()


def _task(ray: Any, function: Callable) -> Any:
    # A core or a device each; a worker or node that dies costs a retry, an error in the code does not.
    needs = {"num_cpus": 1, "num_gpus": int(_place() == "GPU")}
    return ray.remote(**needs, max_retries=-1, retry_exceptions=False)(function)


def _place() -> str:
    """Return what Ray calls the kind of device that the driver has, and that a slice needs one of."""
    return "GPU" if jax.default_backend() == "gpu" else "CPU"


@dataclass(frozen=True)
class _Slice:
    """A slice that is under way."""

    runs: list[PlannedRun]
    steps: int

    @property
    def keys(self) -> list[str]:
        return [run.key for run in self.runs]


def _work(ray: Any, plan: Plan, store: Store, report: Report, show: Callable[[], None], every: float) -> None:
    """Submit every slice that nobody else computes, segment by segment, and write it when it is whole."""
    submit = _task(ray, _computed)
    running: dict[Any, _Slice] = {}

    def go_on(part: _Slice, lanes: Sequence[Lane]) -> None:
        if unfinished(lanes, part.steps):
            running[submit.remote(code_digest(), lanes, plan.width, part.steps, every)] = part
        else:
            write_lanes(part.runs, lanes, store)
            store.release(part.keys)

    try:
        while running or store.missing(run.key for group in plan.groups for run in group.runs):
            mine = {key for part in running.values() for key in part.keys}
            for part in _acquire_slices(plan, store, mine):
                go_on(part, [_plain(lane) for lane in begun(part.runs, store, report)])
            if not running:  # others have acquired what is left
                time.sleep(ACQUIRE_SECONDS)
                continue
            done, _ = ray.wait(list(running), timeout=POLL_SECONDS)
            for reference in done:
                lanes, live, seconds = ray.get(reference)
                part = running.pop(reference)
                for chunk in live:
                    report(chunk_event(part.keys, chunk))
                report({"event": "segment", "runs": part.keys, "seconds": seconds})
                if unfinished(lanes, part.steps):
                    keep_lanes(part.runs, lanes, store)
                go_on(part, lanes)
            show()
    finally:
        store.release(key for part in running.values() for key in part.keys)


def _acquire_slices(plan: Plan, store: Store, mine: Iterable[str]) -> list[_Slice]:
    """Acquire all runs but `mine`, in slices: a lock does not exclude the process that holds it."""
    slices = []
    for group in plan.groups:
        by_key = {run.key: run for run in group.runs if run.key not in mine}
        while keys := store.acquire(store.missing(by_key), plan.width):
            slices.append(_Slice([by_key.pop(key) for key in keys], group.steps))
    return slices


def _plain(lane: Lane) -> Lane:
    """Return the lane with its parameters on the host."""
    return replace(lane, params=jax.tree.map(np.asarray, lane.params))


def _check_code(digest: str) -> None:
    keep_programs()
    if digest != code_digest():
        raise RuntimeError(
            f"node {socket.gethostname()} has another version of simlab or jaxlib than the driver"
        )


def _computed(
    digest: str, lanes: Sequence[Lane], width: int, steps: int, seconds: float
) -> tuple[list[Lane], list[dict[str, Any]], float]:
    """Return the lanes of a slice as far as they have come, what was live on the way, and its seconds."""
    _check_code(digest)
    start = time.perf_counter()
    live: list[dict[str, Any]] = []
    lanes = segment(lanes, width, steps, seconds, live.append)
    return lanes, live, time.perf_counter() - start
