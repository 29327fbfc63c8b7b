"""Verifiable tasks: prompts (training and held-out), verifier and demonstrations, all on the device."""

from simlab.tasks.catalog import TASKS
from simlab.tasks.task import Task
from simlab.tasks.vocabulary import END, PAD, VOCABULARY_SIZE, decode, encode

__all__ = ["END", "PAD", "TASKS", "VOCABULARY_SIZE", "Task", "decode", "encode"]
