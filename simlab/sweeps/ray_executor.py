"""The Ray executor: batches are tasks on a cluster, and their metrics return to the driver's result cache.

Only the driver accesses the sweep's folder, so nodes need not share a disk. On one kind of device, a run has
the same bytes as under the local executor.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import jax
import numpy as np

from simlab.core.backend import THREADS, enable_compile_cache
from simlab.core.json_value import Json
from simlab.core.manifest import processor_family
from simlab.core.own_code import is_installed
from simlab.core.plugins import import_module
from simlab.sweeps.code_version import code_digest
from simlab.sweeps.execute import (
    Report,
    advance_members,
    chunk_event,
    is_unfinished,
    save_checkpoints,
    start_members,
    write_members,
)
from simlab.sweeps.local import check_agreement, record_progress, running_job
from simlab.sweeps.own_records import collect_records
from simlab.sweeps.plan import Plan, PlannedRun
from simlab.sweeps.policy_training import train_policies
from simlab.sweeps.program import BatchedRun
from simlab.sweeps.result_cache import ResultCache

POLL_SECONDS = 0.5
ACQUIRE_SECONDS = 1.0
KNOCK_SECONDS = 10.0


class ClusterError(RuntimeError):
    """Ray is not installed, or no cluster answers."""


def compute(
    plan: Plan,
    cache: ResultCache,
    agreed: Callable[[float], bool],
    watch: bool,
    checkpoint_seconds: float,
    address: str | None,
) -> float:
    """Compute the missing runs of `plan` on the cluster at `address`; return the seconds that it took.

    A task advances a batch by `checkpoint_seconds`; if its worker or node dies, the task runs again. If the
    driver dies, its tasks end, and the next sweep resumes from the results that the driver received.

    Args:
        plan: the runs. Every node needs the same code; a task on a node without it raises.
        cache: result cache of the driver.
        agreed: as for the local executor.
        watch: whether to draw curves.
        checkpoint_seconds: length of a task.
        address: address of the head (`host:6379`); `local`: a cluster on this machine that ends with the
            sweep; None: the cluster that runs on this machine.

    Returns:
        Wall time in seconds.

    Raises:
        ClusterError: If Ray is not installed or no cluster answers.
        RuntimeError: If a task fails.
    """
    if collect_records(run.config.table for run in plan.runs):
        raise ClusterError(
            "executor ray needs user-defined components in module files, named as 'mymodule:name'"
        )
    ray = _connect(address)
    began = time.perf_counter()
    try:
        slots = int(ray.cluster_resources().get(_resource(), 1))
        check_agreement(plan, cache, agreed, slots)
        train_policies(plan, cache)
        with (
            running_job(plan, cache, checkpoint_seconds, watch) as (job, show),
            record_progress(job, 0) as report,
        ):
            _work(ray, plan, cache, report, show, checkpoint_seconds)
    finally:
        ray.shutdown()
    return time.perf_counter() - began


def _connect(address: str | None) -> ModuleType:
    try:
        ray = import_module("ray")
    except ImportError as error:
        raise ClusterError("executor ray needs Ray: pip install 'simlab[ray]'") from error
    folders = [os.path.abspath(entry) for entry in sys.path if not is_installed(entry)]
    try:
        _check_reachable(address)
        ray.init(
            address=address or "auto",
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False,
            # Tasks import user-defined components from where the driver does, and compute on one thread.
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(folders), THREADS: "1"}},
        )
    except (OSError, ValueError) as error:  # a refused connection is an OSError
        raise ClusterError(
            f"no Ray cluster at {address or 'this machine'}: {error}; start one with `ray start --head`, "
            "or take --address local"
        ) from error
    return ray


def _check_reachable(address: str | None) -> None:
    """Raise `OSError` if nothing listens at host:port; Ray would wait for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), KNOCK_SECONDS).close()


def _resource() -> str:
    """Return Ray's name of the driver's kind of device; a batch needs one such device."""
    return "GPU" if jax.default_backend() == "gpu" else "CPU"


@dataclass(frozen=True)
class _Batch:
    """A batch in progress, and the processor families of the nodes that have advanced it."""

    runs: list[PlannedRun]
    steps: int
    families: frozenset[str] = frozenset()

    @property
    def keys(self) -> list[str]:
        return [run.key for run in self.runs]


def _work(
    ray: ModuleType, plan: Plan, cache: ResultCache, report: Report, show: Callable[[], None], every: float
) -> None:
    """Submit every batch that nobody else computes, segment by segment, and write it when it is complete."""
    # A core or a device each; a worker or node that dies costs a retry, an error in the code does not.
    needs = {"num_cpus": 1, "num_gpus": int(_resource() == "GPU")}
    submit = ray.remote(**needs, max_retries=-1, retry_exceptions=False)(_compute_batch)
    running: dict[Hashable, _Batch] = {}

    def go_on(part: _Batch, members: Sequence[BatchedRun]) -> None:
        if is_unfinished(members, part.steps):
            running[submit.remote(code_digest(), members, plan.runs_per_batch, part.steps, every)] = part
        else:
            write_members(part.runs, members, cache, " and ".join(sorted(part.families)))
            cache.release(part.keys)

    try:
        while running or cache.missing(plan.missing_keys):
            acquired = {key for part in running.values() for key in part.keys}
            for part in _acquire_batches(plan, cache, acquired):
                go_on(part, [_plain(member) for member in start_members(part.runs, cache, report)])
            if not running:  # others have acquired what is left
                time.sleep(ACQUIRE_SECONDS)
                continue
            done, _ = ray.wait(list(running), timeout=POLL_SECONDS)
            for reference in done:
                members, live, seconds, family = ray.get(reference)
                part = running.pop(reference)
                part = replace(part, families=part.families | {family})
                for chunk in live:
                    report(chunk_event(part.keys, chunk))
                cache.add_seconds(part.keys, seconds)
                if is_unfinished(members, part.steps):
                    save_checkpoints(part.runs, members, cache)
                go_on(part, members)
            show()
    finally:
        cache.release(key for part in running.values() for key in part.keys)


def _acquire_batches(plan: Plan, cache: ResultCache, acquired: Iterable[str]) -> list[_Batch]:
    """Acquire all runs but `acquired`, in batches: a lock does not exclude the process that holds it."""
    batches = []
    for group in plan.groups:
        by_key = {run.key: run for run in group.runs if run.key not in acquired}
        while keys := cache.acquire(cache.missing(by_key), plan.runs_per_batch):
            batches.append(_Batch([by_key.pop(key) for key in keys], group.steps))
    return batches


def _plain(member: BatchedRun) -> BatchedRun:
    """Return the member with its parameters on the host."""
    return replace(member, params=jax.tree.map(np.asarray, member.params))


def _compute_batch(
    digest: str, members: Sequence[BatchedRun], runs_per_batch: int, steps: int, seconds: float
) -> tuple[list[BatchedRun], list[dict[str, Json]], float, str]:
    """Return the advanced members of a batch, their live metrics, the seconds used, the processor family."""
    enable_compile_cache()
    if digest != code_digest():
        raise RuntimeError(
            f"node {socket.gethostname()} has another version of simlab or jaxlib than the driver"
        )
    start = time.perf_counter()
    live: list[dict[str, Json]] = []
    members = advance_members(members, runs_per_batch, steps, seconds, live.append)
    return members, live, time.perf_counter() - start, processor_family()
