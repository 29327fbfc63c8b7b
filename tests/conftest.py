"""Strict JAX, one Hypothesis profile, no time limits."""

import jax
import pytest
from hypothesis import HealthCheck, settings

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Compilation makes the first example slow, so time limits would only measure XLA.
settings.register_profile(
    "simlab", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("simlab")


@pytest.fixture(autouse=True)
def _forget_programs(request):
    """Free what a slow test compiled: a hundred such programs would fill the memory of a worker."""
    yield
    if request.node.get_closest_marker("slow"):
        jax.clear_caches()
