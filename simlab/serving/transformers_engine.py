"""Hugging Face transformers in its own environment as an engine."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from simlab.core.catalog import lookup
from simlab.serving.served_engine import PARITY, ServedEngine


class TransformersEngine(ServedEngine):
    """transformers in the environment of `python`, with weights as `dtype`; a context manager.

    `timeout` is in seconds per request.
    """

    server = "transformers_server.py"
    environment = "hf"
    packages = "torch transformers"

    def __init__(self, python: str | Path | None, *, dtype: str = "float32", timeout: float = 600.0):
        """Start the server. Raises `EngineError` with the install command if that fails."""
        parity = lookup(PARITY, dtype, "dtype")
        super().__init__(f"transformers {dtype}", python, dtype=dtype, parity=parity, timeout=timeout)

    def encode(self, folder: str | Path, text: str) -> Int[np.ndarray, " S"]:
        """Return the tokens of `text` with the tokenizer of a checkpoint; needs no weights."""
        return self._server.call("encode", folder=str(folder), text=text)[1]["tokens"]

    def decode(self, folder: str | Path, tokens: Int[np.ndarray, " S"]) -> str:
        """Return the text of one row of tokens without special tokens, with the tokenizer of a checkpoint."""
        return str(self._server.call("decode", {"tokens": tokens}, folder=str(folder))[0]["text"])

    def hidden_states(
        self, tokens: Int[np.ndarray, "B S"], depths: Sequence[int]
    ) -> Float[np.ndarray, "depths B S D"]:
        """Return the normed hidden states after each of `depths` layers, [depths, B, S, D]."""
        return self._call("hidden", {"tokens": tokens, "depths": np.asarray(depths)})[1]["hidden"]
