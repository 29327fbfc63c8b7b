"""Real models: checkpoints of Hugging Face and llama.cpp."""

from simlab.harness.reading import Checkpoint, load_checkpoint, open_checkpoint
from simlab.harness.writing import STORAGE, save_checkpoint

__all__ = ["STORAGE", "Checkpoint", "load_checkpoint", "open_checkpoint", "save_checkpoint"]
