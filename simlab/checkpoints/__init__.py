"""Checkpoints of Hugging Face and llama.cpp: read into the lab, written for real engines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simlab.checkpoints.checkpoint_reader import Checkpoint, load_checkpoint, open_checkpoint
    from simlab.checkpoints.checkpoint_writer import STORAGE, save_checkpoint

__all__ = ["STORAGE", "Checkpoint", "load_checkpoint", "open_checkpoint", "save_checkpoint"]


def __getattr__(name: str) -> Any:
    """Load checkpoints, and JAX with them, when asked for: verl's workers import this package too."""
    if name in ("STORAGE", "save_checkpoint"):
        return getattr(import_module("simlab.checkpoints.checkpoint_writer"), name)
    if name in __all__:
        return getattr(import_module("simlab.checkpoints.checkpoint_reader"), name)
    raise AttributeError(f"module 'simlab.checkpoints' has no attribute {name!r}")
