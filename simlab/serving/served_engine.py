"""An engine of another framework: weights go there as a checkpoint, tokens through a pipe or as they are."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from simlab.checkpoints.checkpoint_writer import save_checkpoint
from simlab.core.manifest import Json
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.serving.protocol import (
    EngineError,
    Sampled,
    Sampling,
    Scored,
    assert_parity,
    checked_logps,
    refuse_without_weights,
    sampled,
)
from simlab.serving.server_process import ServerHere, ServerProcess
from simlab.serving.servers.messages import Message

SERVERS = Path(__file__).with_name("servers")

PARITY = {"float32": 1e-3, "bfloat16": 0.3, "float16": 0.1}
"""Nats by which a sync may move the probe, by storage; a broken one moves it by more than one."""


class ServedEngine:
    """What the engines of other frameworks have in common; a context manager.

    A subclass names its `server`, a file beside this one, and how to `install` what that imports. `python` is
    the interpreter of an environment that has it; None computes in this process.
    """

    server: str
    install: str

    def __init__(self, name: str, python: str | Path | None, *, dtype: str, parity: float, timeout: float):
        """Start the server. Raises `EngineError` saying how to install it if that fails."""
        self.name, self.dtype, self.parity, self._loaded = name, dtype, parity, False
        self._folder = tempfile.TemporaryDirectory(prefix="simlab-")
        script = SERVERS / self.server
        self._server = (
            ServerHere(script, name, self.install)
            if python is None
            else ServerProcess([str(python), str(script)], name, self.install, timeout)
        )
        try:
            self.versions = self._server.call("describe")[0]
        except EngineError as error:
            self.close()
            raise EngineError(f"{error}; install it with: {self.install}") from error

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server and remove its checkpoint."""
        self.close()

    def close(self) -> None:
        """End the server and remove its checkpoint; a second call does nothing."""
        self._server.close()
        self._folder.cleanup()

    def describe(self) -> Mapping[str, Json]:
        """Return name, storage and versions."""
        return {"engine": self.name, "dtype": self.dtype, "versions": self.versions}

    def loading(self, config: TransformerConfig) -> Mapping[str, Json]:
        """Return what the server is told of a checkpoint of `config`, besides its folder."""
        del config
        return {"dtype": self.dtype}

    def write(self, folder: Path, config: TransformerConfig, params: Params) -> Path:
        """Write the weights into `folder` and return what the server is to load."""
        return save_checkpoint(folder / "policy", config, params, dtype=self.dtype)

    def sync_weights(self, config: TransformerConfig, params: Params) -> float:
        """Write a checkpoint, have it loaded, and compare the probe."""
        written = self.write(Path(self._folder.name), config, params)
        self._server.call("load", folder=str(written), **self.loading(config))
        self._loaded = True
        return assert_parity(self, self.name, config, params, self.parity)

    def generate(self, prompts: np.ndarray, sampling: Sampling) -> Sampled:
        """Sample token by token from its cache."""
        options = {
            "length": sampling.length,
            "temperature": float(sampling.temperature),
            "seed": sampling.seed,
            "end": sampling.end,
            "pad": sampling.pad,
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
