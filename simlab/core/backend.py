"""JAX's backends: threads of the CPU, options of the compiler, the folder that keeps compiled functions."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import jax
from jax._src import xla_bridge
from jax.experimental.compilation_cache import compilation_cache

VARIABLE = "SIMLAB_CACHE"
THREADS = "PJRT_NPROC"
"""The variable that XLA reads when it makes the threads of a backend."""
CompilerOptions = dict[str, bool | int | float | str]
GPU_OPTIONS: CompilerOptions = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
"""Autotuning is off. It chooses kernels by their time, so the bits of a run would differ between processes.
It also compiles every product many times, which costs more than it gains in runs of minutes."""

# What the variable was when the backend started, as far as this process knows: JAX keeps its threads, so a
# later value says nothing about them. This module is imported before most callers start JAX.
_at_start = os.environ.get(THREADS)
_is_fixed = False


def compute_on_one_thread() -> bool:
    """Start XLA's CPU backend on one thread; return whether it has one.

    It keeps its threads once JAX has started it, so call this first. Several threads divide a long sum, such
    as the gradient of a weight over thousands of tokens, so the bits of a run would depend on their number.
    """
    global _at_start, _is_fixed
    # JAX has no public function for this. Where the private one is gone, a worker process computes.
    has_started = getattr(xla_bridge, "backends_are_initialized", lambda: True)
    if not _is_fixed and not has_started():
        _at_start = os.environ.setdefault(THREADS, "1")
        jax.devices()
    _is_fixed = True
    return _at_start == "1" or len(os.sched_getaffinity(0)) == 1


def require_one_thread() -> None:
    """Start XLA's CPU backend on one thread, or raise an error; a GPU may have any number of host threads.

    Raises:
        ValueError: If the variable asks for more threads.
        RuntimeError: If JAX has started with more threads.
    """
    if not compute_on_one_thread() and jax.default_backend() == "cpu":
        if _at_start is not None:
            raise ValueError(f"{THREADS} must be 1 or unset for training runs, got {_at_start}.")
        raise RuntimeError(
            "training runs must be computed on one thread, but JAX has started with more in this process. "
            f"Set {THREADS}=1 before JAX starts, or call this first in a new process."
        )


def is_gpu_backend() -> bool:
    """Return whether JAX traces functions for a GPU.

    On a GPU the number of kernels decides the time of a small model, so some functions have a form with fewer
    kernels. It differs from the form for a CPU only in the order of float32 sums.
    """
    return jax.default_backend() == "gpu"


def compiler_options() -> CompilerOptions | None:
    """Return the options with which training runs are compiled on this backend: `GPU_OPTIONS` on a GPU.

    Options that the user sets in `XLA_FLAGS` are left out.
    """
    if not is_gpu_backend():
        return None
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in GPU_OPTIONS.items() if name not in flags}


@contextlib.contextmanager
def limiting_children() -> Iterator[None]:
    """Give one thread to the processes that start inside; this process keeps its threads."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[THREADS]
        if before is not None:
            os.environ[THREADS] = before


def cache_folder() -> Path | None:
    """Return `$SIMLAB_CACHE`, or `simlab` in the user's cache folder; None if the variable is empty."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "simlab"


def enable_compile_cache() -> Path | None:
    """Let JAX keep compiled functions in the cache folder, unless the user has chosen another; return it.

    Small functions are stored too: a sweep begins with dozens of them.
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
    """Return the folder that JAX keeps compiled functions in, None if it does not."""
    folder = getattr(jax.config, "jax_compilation_cache_dir", None)
    return None if folder is None else Path(folder)
