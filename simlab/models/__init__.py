"""Policies: softmax tables small enough to enumerate."""

from simlab.models.tabular import SequenceSpace, enumerate_sequences, list_sequences

__all__ = ["SequenceSpace", "enumerate_sequences", "list_sequences"]
