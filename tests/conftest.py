"""Strict JAX, one Hypothesis profile, no time limits, programs kept and compiled as their tests need."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.compiling import compile_quickly, jax

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Compilation makes the first example slow, so time limits would only measure XLA.
settings.register_profile(
    "simlab", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("simlab")

COMPILED_AS_FOR_A_RUN = ("contracts", "core", "engines", "engines_real", "formats", "models", "rollout")
"""Folders whose tests promise bits of a run, so that its compiler options are under test, too."""

MEMORY_LIMIT = 1.5e9
"""Bytes of a worker above which it drops its programs between two files."""


@pytest.fixture(autouse=True)
def _forget_programs(request):
    """Free what a slow test compiled: a hundred such programs would fill the memory of a worker."""
    yield
    if request.node.get_closest_marker("slow"):
        jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def _choose_compiler_options(request):
    compile_quickly(request.path.relative_to(Path(__file__).parent).parts[0] not in COMPILED_AS_FOR_A_RUN)
    yield
    if _resident_bytes() > MEMORY_LIMIT:
        jax.clear_caches()


def _resident_bytes() -> int:
    """Return the memory of this process, 0 where the system does not tell."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.is_file() else 0
