"""Compilation in tests: workers share programs; effort is low where no test compares bits of a run."""

import os
import sys
from pathlib import Path
from typing import Any

# JAX reads these when it is imported, here and in the processes that tests start. Every program is kept,
# because most are small and compiled by each worker anew.
PROGRAMS = Path(__file__).parents[1] / ".cache" / "tests" / "programs"
# One thread per process, as in a sweep.
os.environ.setdefault("PJRT_NPROC", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax  # noqa: E402
from jax._src import compiler  # noqa: E402

# What runs once or twice is not worth the compiler's effort: a sixth of the time. Of the passes left out, one
# moves work out of loops, one moves it back, and the first repeats them until it has tried 25 times. Dividing
# a program among threads would cost a fifth more CPU time, and the other core has tests of its own.
QUICK: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_disable_hlo_passes": "simplification,while-loop-invariant-code-motion,while-loop-constant-sinking",
    "xla_cpu_parallel_codegen_split_count": 1,
}
if jax.__version_info__ < (0, 11):  # later ones have one emitter only
    QUICK["xla_cpu_use_fusion_emitters"] = False

# Where a later JAX has it elsewhere, all programs are compiled as in a run.
_options_of_jax: Any = getattr(compiler, "get_compile_options", None)
_is_quick = False


def is_quick() -> bool:
    """Return whether programs are compiled with `QUICK` now."""
    return _is_quick


def _quick_options(*arguments: Any, env_options_overrides: dict | None = None, **rest: Any) -> Any:
    options = QUICK | (env_options_overrides or {})
    return _options_of_jax(*arguments, env_options_overrides=options, **rest)


def compile_quickly(quick: bool) -> None:
    """Compile with `QUICK` from now on, or as in a run. JAX has no public option for all programs."""
    global _is_quick
    if quick != _is_quick and _options_of_jax is not None:
        jax.clear_caches()
        # Sweeps keep compiled functions of their own.
        if sweeps := sys.modules.get("simlab.sweeps.compilation"):
            sweeps.forget_compiled()
        compiler.get_compile_options = _quick_options if quick else _options_of_jax
        _is_quick = quick
