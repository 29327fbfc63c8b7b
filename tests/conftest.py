"""Strict JAX, one Hypothesis profile, no time limits."""

import jax
from hypothesis import HealthCheck, settings

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Compilation makes the first example slow, so time limits would only measure XLA.
settings.register_profile(
    "simlab", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("simlab")
