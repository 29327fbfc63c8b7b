"""Locks in the folder of compiled functions: one process compiles, the others find the function."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from simlab.core.backend import compile_cache_folder


@contextlib.contextmanager
def compiling_alone(name: str) -> Iterator[None]:
    """Let one process at a time compile the function `name`: the next one finds it in the cache folder.

    A process that dies releases its lock. Without support for locks, processes compile in parallel.
    The file is empty until the function is compiled.
    """
    folder = compile_cache_folder()
    file = None
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(open(_lock(folder, name), "ab"))
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
        if file is not None:
            file.truncate(1)


def was_compiled(name: str) -> bool:
    """Return whether a process has compiled the function `name` in `compiling_alone`."""
    folder = compile_cache_folder()
    if folder is None:
        return False
    lock = _lock(folder, name)
    return lock.exists() and lock.stat().st_size > 0


def _lock(folder: Path, name: str) -> Path:
    return folder / f"{name}.lock"
