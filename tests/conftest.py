"""Strict JAX, checked shapes, one Hypothesis profile, programs kept and compiled as their tests need."""

import gc
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

from tests.compiling import compile_quickly, jax

CHECKED_ENGINES = (
    "accumulate",
    "attention",
    "kernel_order",
    "length_splits",
    "norm",
    "ordered_sums",
    "router",
    "softmax",
    "tensor_core",
)
# Not the modules that check shapes themselves and name what is wrong (`objectives.batch`, `engines.matmul`),
# nor those whose functions are part of a compiled function's name (the rest of `objectives`).
CHECKED = [
    "simlab.formats.scale_rules",
    "simlab.metrics",
    "simlab.models",
    "simlab.rollout",
    "simlab.theory",
    *(f"simlab.engines.{name}" for name in CHECKED_ENGINES),
    *(f"simlab.objectives.{name}" for name in ("plain_grpo", "transforms")),
    *(f"simlab.tasks.{name}" for name in ("sequences", "sums", "task")),
    *(
        f"simlab.training.{name}"
        for name in ("critic", "curvature", "evaluation", "measure", "schedules", "staleness")
    ),
]
install_import_hook(CHECKED, "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Compilation makes the first example slow, so time limits would only measure XLA.
settings.register_profile(
    "simlab", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("simlab")

COMPILED_QUICKLY = (
    "checkpoints",
    "contracts/test_models.py",
    "contracts/test_objectives.py",
    "contracts/test_tasks.py",
    "contracts/test_training.py",
    "metrics",
    "models",
    "objectives",
    "rollout",
    "serving",
    "sweeps/test_policy_training.py",
    "sweeps/test_switch_objective.py",
    "theory",
    "training",
)
"""Folders and files whose tests compare no bits with those of another process.

A test there that promises bits of a run calls `compile_quickly(False)` first.
"""

MEMORY_LIMIT = 3e9
"""Bytes of memory above which a worker drops its compiled programs; dropping takes seconds."""


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep what is imported and collected out of garbage collection, and collect the rest less often.

    All of it stays; to visit it again and again took a quarter of the time in which JAX traces.
    """
    gc.disable()
    result = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 10)
    gc.enable()
    return result


def pytest_collection_modifyitems(items):
    """Sort the files that are compiled quickly to the front: a change of options drops all programs.

    Files with many tests come first, so that the workers end at the same time.
    """
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (not _is_quick(item.path), -tests[item.path], item.path))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Choose the compiler's options before any fixture: one of the session may compile runs, too."""
    compile_quickly(_is_quick(item.path) or "quick_programs" in item.fixturenames)


@pytest.fixture(autouse=True, scope="module")
def _bound_memory():
    yield
    _drop_programs_above_limit()


@pytest.fixture(autouse=True)
def _bound_memory_of_slow_tests(request):
    """A hundred programs of slow tests would fill the memory of a worker within one file."""
    yield
    if request.node.get_closest_marker("slow"):
        _drop_programs_above_limit()


@pytest.fixture
def quick_programs(monkeypatch):
    """Compile without effort, in processes that an experiment starts as `pytest_runtest_setup` does here."""
    # This process reads its flags at the first use of a device; those below are for the others.
    jax.devices()
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    monkeypatch.setenv("XLA_FLAGS", f"{os.environ.get('XLA_FLAGS', '')} {quick}".strip())


def _drop_programs_above_limit() -> None:
    from simlab.sweeps.memory import resident_bytes, return_free_memory  # after the import hook

    if resident_bytes() > MEMORY_LIMIT:
        jax.clear_caches()
        gc.collect()
        # Freed memory that the C library keeps is resident, and would count at the end of every later file.
        return_free_memory()


def _is_quick(path: Path) -> bool:
    within = path.relative_to(Path(__file__).parent)
    return any(within.is_relative_to(folder) for folder in COMPILED_QUICKLY)
