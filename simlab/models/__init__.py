"""Policies: a small transformer, and softmax tables small enough to enumerate."""

from simlab.models.config import MODELS, TransformerConfig
from simlab.models.parameters import init_params
from simlab.models.tabular import SequenceSpace, enumerate_sequences, list_sequences
from simlab.models.transformer import logits

__all__ = [
    "MODELS",
    "SequenceSpace",
    "TransformerConfig",
    "enumerate_sequences",
    "init_params",
    "list_sequences",
    "logits",
]
