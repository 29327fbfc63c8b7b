"""Hugging Face transformers, in an environment of its own, as an engine of the lab."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from simlab.core.catalog import lookup
from simlab.harness.protocol import (
    EngineError,
    Sampled,
    Sampling,
    Scored,
    assert_parity,
    checked_logps,
    refuse_without_weights,
    sampled,
)
from simlab.harness.server_process import ServerProcess
from simlab.harness.servers.messages import Message
from simlab.harness.writing import STORAGE, save_checkpoint
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params

SERVER = Path(__file__).with_name("servers") / "transformers_server.py"
INSTALL = "python scripts/make_env.py hf"

# Nats by which a sync may move the probe; a broken one moves it by more than one.
PARITY = {"float32": 1e-3, "bfloat16": 0.3, "float16": 0.1}


class TransformersEngine:
    """transformers in the environment of `python`, with weights as `dtype`; a context manager.

    `timeout` is in seconds, for each answer.
    """

    def __init__(self, python: str | Path, *, dtype: str = "float32", timeout: float = 600.0):
        """Start the server. Raises `EngineError` saying how to install it if that fails."""
        lookup(STORAGE, dtype, "dtype")
        self.dtype, self.name, self._loaded = dtype, f"transformers {dtype}", False
        self._folder = tempfile.TemporaryDirectory(prefix="simlab-")
        self._server = ServerProcess([str(python), str(SERVER)], self.name, INSTALL, timeout)
        try:
            self._versions = self._server.call("describe")[0]
        except EngineError as error:
            raise EngineError(f"{error}; install it with: {INSTALL}") from error

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server and remove its checkpoint."""
        self._server.close()
        self._folder.cleanup()

    def describe(self) -> Mapping[str, Any]:
        """Return name, storage and versions."""
        return {"engine": "transformers", "dtype": self.dtype, "versions": self._versions}

    def sync_weights(self, config: TransformerConfig, params: Params) -> float:
        """Write a checkpoint, have it loaded, and compare the probe."""
        folder = save_checkpoint(Path(self._folder.name) / "policy", config, params, dtype=self.dtype)
        self._server.call("load", folder=str(folder), dtype=self.dtype)
        self._loaded = True
        return assert_parity(self, self.name, config, params, PARITY[self.dtype])

    def generate(self, prompts: np.ndarray, sampling: Sampling) -> Sampled:
        """Sample token by token from its cache."""
        options = {
            "length": sampling.length,
            "temperature": float(sampling.temperature),
            "seed": sampling.seed,
        }
        _, found = self._ask("generate", {"prompts": prompts}, **options)
        experts = found.get("experts")
        return sampled(self.name, found["tokens"], found["logps"], experts, sampling, len(prompts))

    def score(self, prompts: np.ndarray, responses: np.ndarray) -> Scored:
        """Score in one pass."""
        tokens = np.concatenate([prompts, responses], axis=1)
        _, found = self._ask("score", {"tokens": tokens, "first": np.asarray(prompts.shape[1])})
        return Scored(checked_logps(self.name, found["logps"], responses.shape), found.get("experts"))

    def _ask(self, do: str, arrays: Mapping[str, np.ndarray], **header: Any) -> Message:
        if not self._loaded:
            refuse_without_weights(self.name)
        return self._server.call(do, arrays, **header)
