"""Strict JAX, checked shapes, one Hypothesis profile, no time limits, one folder of compiled programs."""

import os
from pathlib import Path

# JAX reads these when it is imported, here and in the processes that tests start. Every program is kept,
# because most are small and compiled by each worker anew.
PROGRAMS = Path(__file__).parents[1] / ".cache" / "tests" / "programs"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

# Not the modules that check shapes themselves and name what is wrong (`objectives.batch`, `engines.matmul`),
# nor those whose functions are part of a compiled function's name (the rest of `objectives`).
CHECKED = [
    "simlab.metrics",
    "simlab.models",
    "simlab.rollout",
    *(f"simlab.engines.{name}" for name in ("attention", "norm", "router", "softmax")),
    *(f"simlab.training.{name}" for name in ("critic", "curvature", "evaluation", "measure", "staleness")),
]
install_import_hook(CHECKED, "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Compilation makes the first example slow, so time limits would only measure XLA.
settings.register_profile(
    "simlab", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("simlab")

MEMORY_LIMIT = 1.5e9
"""Bytes of a worker above which it drops its programs between two files."""


@pytest.fixture(autouse=True)
def _forget_programs(request):
    """Free what a slow test compiled: a hundred such programs would fill the memory of a worker."""
    yield
    if request.node.get_closest_marker("slow"):
        jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def _limit_memory():
    yield
    if _resident_bytes() > MEMORY_LIMIT:
        jax.clear_caches()


def _resident_bytes() -> int:
    """Return the memory of this process, 0 where the system does not tell."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.is_file() else 0
