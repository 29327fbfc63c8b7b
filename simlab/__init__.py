"""simlab: a numerical-precision simulation lab for reinforcement learning of language models."""

from typing import TYPE_CHECKING, Any

from simlab.core.plugins import import_module

if TYPE_CHECKING:
    from simlab.sweeps import RunConfig, SweepResult, grid, listed, load, sampled, seeds_needed, sweep

__all__ = ["RunConfig", "SweepResult", "grid", "listed", "load", "sampled", "seeds_needed", "sweep"]


def __getattr__(name: str) -> Any:
    """Load the sweeps, and JAX with them, when they are first asked for."""
    if name in __all__:
        return getattr(import_module("simlab.sweeps"), name)
    raise AttributeError(f"module 'simlab' has no attribute {name!r}")
