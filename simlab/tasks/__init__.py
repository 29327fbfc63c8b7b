"""Verifiable tasks: prompts (training and held-out), verifier and demonstrations, all on the device."""

from simlab.tasks.catalog import TASKS
from simlab.tasks.task import Task
from simlab.tasks.vocabulary import EOS_TOKEN_ID, PAD_TOKEN_ID, VOCABULARY_SIZE, decode, encode

__all__ = ["EOS_TOKEN_ID", "PAD_TOKEN_ID", "TASKS", "VOCABULARY_SIZE", "Task", "decode", "encode"]
