"""simlab: a numerical-precision simulation lab for reinforcement learning of language models."""

from typing import TYPE_CHECKING

from simlab.core.plugins import import_module
from simlab.core.version import __version__ as __version__

if TYPE_CHECKING:
    from simlab.sweeps import SweepResult, grid, listed, load, run_config, sampled, seeds_needed, sweep

__all__ = ["SweepResult", "grid", "listed", "load", "run_config", "sampled", "seeds_needed", "sweep"]


def __getattr__(name: str) -> object:
    """Import the sweeps, and JAX with them, at the first use of a public name."""
    if name in __all__:
        return getattr(import_module("simlab.sweeps"), name)
    raise AttributeError(f"module 'simlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names and the packages imported so far, without the imports of this file."""
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "import_module"})
