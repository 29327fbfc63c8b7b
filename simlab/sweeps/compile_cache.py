"""Compilation of functions, and the folder that stores them for later processes."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import jax
from jax._src import xla_bridge
from jax.experimental.compilation_cache import compilation_cache

VARIABLE = "SIMLAB_CACHE"
THREADS = "PJRT_NPROC"
"""The variable that XLA reads when it makes the threads of a backend."""


def compute_on_one_thread() -> bool:
    """Limit XLA's CPU backend to one thread; return whether this succeeded.

    Call this before JAX starts: then the number of threads is fixed. Several threads divide a long sum, such
    as the gradient of a weight over thousands of tokens, so the bits of a run would depend on their number.
    """
    # JAX has no public function for this. Where the private one is gone, a worker process computes.
    has_started = getattr(xla_bridge, "backends_are_initialized", lambda: True)
    if not has_started():
        os.environ.setdefault(THREADS, "1")
    return os.environ.get(THREADS) == "1" or len(os.sched_getaffinity(0)) == 1


def cache_folder() -> Path | None:
    """Return `$SIMLAB_CACHE`, or `simlab` in the user's cache folder; None if the variable is empty."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "simlab"


def enable_compile_cache() -> Path | None:
    """Store compiled functions in the cache folder or the folder that the user has chosen; return it.

    Small functions are stored too, because a sweep starts with dozens of them.
    """
    folder = cache_folder()
    if folder is not None and compile_cache_folder() is None:
        jax.config.update("jax_compilation_cache_dir", str(folder / "programs"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        # JAX looks for the folder once, at its first compilation, which may have been before this.
        compilation_cache.reset_cache()
    return compile_cache_folder()


def compile_cache_folder() -> Path | None:
    """Return the folder in which JAX stores compiled functions; None if it stores none."""
    folder = getattr(jax.config, "jax_compilation_cache_dir", None)
    return None if folder is None else Path(folder)


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
