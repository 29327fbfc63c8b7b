"""Real models: checkpoints of Hugging Face and llama.cpp; diagnosis of logs; the verl plug-in."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simlab.harness.reading import Checkpoint, load_checkpoint, open_checkpoint
    from simlab.harness.writing import STORAGE, save_checkpoint

__all__ = ["STORAGE", "Checkpoint", "load_checkpoint", "open_checkpoint", "save_checkpoint"]


def __getattr__(name: str) -> Any:
    """Load checkpoints, and JAX with them, when asked for: verl's workers import this package too."""
    if name in ("STORAGE", "save_checkpoint"):
        return getattr(import_module("simlab.harness.writing"), name)
    if name in __all__:
        return getattr(import_module("simlab.harness.reading"), name)
    raise AttributeError(f"module 'simlab.harness' has no attribute {name!r}")
