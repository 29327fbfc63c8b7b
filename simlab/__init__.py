"""simlab: a numerical-precision simulation lab for reinforcement learning of language models."""

from typing import TYPE_CHECKING

from simlab.core.plugins import import_module
from simlab.core.version import __version__ as __version__

if TYPE_CHECKING:
    from simlab.studies.seed_count import seeds_needed
    from simlab.sweeps import SweepResult, grid, listed, load, run_config, sampled, sweep

__all__ = ["SweepResult", "grid", "listed", "load", "run_config", "sampled", "seeds_needed", "sweep"]


def __getattr__(name: str) -> object:
    """Import the module of a public name, and JAX with it, at its first use."""
    if name in __all__:
        module = "simlab.studies.seed_count" if name == "seeds_needed" else "simlab.sweeps"
        return getattr(import_module(module), name)
    raise AttributeError(f"module 'simlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names and the packages imported so far, without the imports of this file."""
    return sorted({*globals(), *__all__} - {"TYPE_CHECKING", "import_module"})
