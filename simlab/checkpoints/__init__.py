"""Read and write checkpoints of Hugging Face and llama.cpp."""

from simlab.checkpoints.checkpoint_reader import Checkpoint, load_checkpoint, open_checkpoint
from simlab.checkpoints.checkpoint_writer import STORAGE, save_checkpoint

__all__ = ["STORAGE", "Checkpoint", "load_checkpoint", "open_checkpoint", "save_checkpoint"]
