"""Many processes as one program: each owns its devices, all run the same steps."""

import os
import socket
import time
from collections.abc import Mapping

import jax

# What torchrun and most launchers set; `python -m torch.distributed.run` need not be there for it.
LAUNCHER = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


def connect(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    seconds: int = 60,
) -> None:
    """Join this process to the others, before anything else is asked of JAX; `jax.devices()` then has all.

    `coordinator` is `host:port`, where process 0 listens and which all reach; `process` counts from 0. With
    none of the three they are read from the environment: MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK as
    torchrun sets them, or what JAX itself knows (SLURM, Open MPI, Kubernetes, a TPU pod). CPUs talk through
    gloo.

    Raises `ValueError` for arguments that are missing or do not fit, and `ConnectionError` if nobody listens
    at `coordinator` within `seconds`. If process 0 waits so long for another one, JAX ends it, and says why.
    """
    given = {"coordinator": coordinator, "processes": processes, "process": process}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == 3:
        coordinator, processes, process = _launched(os.environ)
    elif missing:
        raise ValueError(f"{', '.join(missing)} missing; allowed: all of {', '.join(given)}, or none of them")
    if coordinator is not None:
        _check(coordinator, processes, process)
    if coordinator is not None and process != 0:
        _await(coordinator, f"process {process} of {processes}", seconds)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(coordinator, processes, process, initialization_timeout=seconds)
    except ValueError as error:
        raise ValueError(
            "no other processes are known: pass coordinator, processes and process, "
            f"set {', '.join(LAUNCHER)}, or start under SLURM, Open MPI or Kubernetes"
        ) from error


def _launched(environment: Mapping[str, str]) -> tuple[str | None, int | None, int | None]:
    """Return (coordinator, processes, process) that a launcher has set, or three times None."""
    found = {name: environment[name] for name in LAUNCHER if name in environment}
    if not found:
        return None, None, None
    if len(found) < len(LAUNCHER):
        raise ValueError(f"the environment has {', '.join(found)}; allowed: all of {', '.join(LAUNCHER)}")
    try:
        return f"{found['MASTER_ADDR']}:{found['MASTER_PORT']}", int(found["WORLD_SIZE"]), int(found["RANK"])
    except ValueError as error:
        raise ValueError(
            f"WORLD_SIZE {found['WORLD_SIZE']!r}, RANK {found['RANK']!r}; allowed: integers"
        ) from error


def _check(coordinator: str, processes: int | None, process: int | None) -> None:
    assert processes is not None
    assert process is not None
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"bad coordinator {coordinator!r}; write it as host:port")
    if not 0 <= process < processes:
        raise ValueError(f"process {process} of {processes}; allowed: 0 to {processes - 1}")


def _await(coordinator: str, who: str, seconds: float) -> None:
    """Wait until somebody listens; JAX would end the program, where an exception can be handled."""
    host, _, port = coordinator.rpartition(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
            return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise ConnectionError(
                    f"{who} found nobody at {coordinator} within {seconds} s: {error}"
                ) from error
        time.sleep(0.1)
