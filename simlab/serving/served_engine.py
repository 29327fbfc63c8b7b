"""Engines of other frameworks: weights travel as a checkpoint, tokens through a pipe or in process."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Self

import numpy as np
from jaxtyping import Int

from simlab.checkpoints.checkpoint_writer import save_checkpoint
from simlab.core.json_value import Json
from simlab.core.paths import checkout_root
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.serving.protocol import (
    EngineError,
    EngineScores,
    Samples,
    SamplingRequest,
    assert_parity,
    build_samples,
    check_logps,
    raise_without_weights,
)
from simlab.serving.server_process import InProcessServer, ServerProcess
from simlab.serving.servers.messages import Message

SERVERS = Path(__file__).with_name("servers")

PARITY = {"float32": 1e-3, "bfloat16": 0.3, "float16": 0.1}
"""Tolerance of the parity check by the format of weights, nats; a corrupt sync exceeds 1 nat."""


def install_command(environment: str, packages: str) -> str:
    """Return the command that installs a framework: in a checkout its environment, else pip's `packages`."""
    script = Path("scripts") / "make_env.py"
    if (checkout_root() / script).is_file():
        return f"python {script} {environment}"
    return f"pip install {packages}"


class ServedEngine:
    """Base of the engines of other frameworks; a context manager.

    A subclass sets `server`, a file of `simlab/serving/servers`, and for errors the name of its `environment`
    and the `packages` that pip installs. `python` is the interpreter of an environment that has them; None
    computes in this process.
    """

    server: str
    environment: str
    packages: str

    def __init__(self, name: str, python: str | Path | None, *, dtype: str, parity: float, timeout: float):
        """Start the server. Raises `EngineError` with the install command if that fails."""
        self.name, self.dtype, self.parity, self._loaded = name, dtype, parity, False
        self._folder = tempfile.TemporaryDirectory(prefix="simlab-")
        script = SERVERS / self.server
        install = install_command(self.environment, self.packages)
        self._server = (
            InProcessServer(script, name, install)
            if python is None
            else ServerProcess([str(python), str(script)], name, install, timeout)
        )
        try:
            self.versions = self._server.call("describe")[0]
        except EngineError as error:
            self.close()
            raise EngineError(f"{error} Install: {install}") from error

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server and remove its checkpoint."""
        self.close()

    def close(self) -> None:
        """Stop the server and remove its checkpoint; idempotent."""
        self._server.close()
        self._folder.cleanup()

    def describe(self) -> Mapping[str, Json]:
        """Return name, format of weights and versions."""
        return {"engine": self.name, "dtype": self.dtype, "versions": self.versions}

    def get_load_options(self, config: TransformerConfig) -> Mapping[str, Json]:
        """Return the options of the server's `load` besides the directory."""
        del config
        return {"dtype": self.dtype}

    def write_weights(self, folder: Path, config: TransformerConfig, params: Params) -> Path:
        """Write the weights into `folder` and return the path to load."""
        return save_checkpoint(folder / "policy", config, params, dtype=self.dtype)

    def sync_weights(self, config: TransformerConfig, params: Params) -> float:
        """Write a checkpoint, load it, and run the parity check."""
        path = self.write_weights(Path(self._folder.name), config, params)
        self._server.call("load", folder=str(path), **self.get_load_options(config))
        self._loaded = True
        return assert_parity(self, self.name, config, params, self.parity)

    def generate(self, prompts: Int[np.ndarray, "N P"], sampling: SamplingRequest) -> Samples:
        """Sample token by token with a KV cache."""
        _, arrays = self._call("generate", {"prompts": prompts}, **asdict(sampling))
        experts = arrays.get("routed_experts")
        return build_samples(self.name, arrays["tokens"], arrays["logps"], experts, sampling, len(prompts))

    def score(self, prompts: Int[np.ndarray, "N P"], responses: Int[np.ndarray, "N T"]) -> EngineScores:
        """Score in one pass."""
        tokens = np.concatenate([prompts, responses], axis=1)
        _, arrays = self._call("score", {"tokens": tokens, "first": np.asarray(prompts.shape[1])})
        logps = check_logps(self.name, arrays["logps"], responses.shape)
        return EngineScores(logps, arrays.get("routed_experts"))

    def _call(self, do: str, arrays: Mapping[str, np.ndarray], **header: object) -> Message:
        if not self._loaded:
            raise_without_weights(self.name)
        return self._server.call(do, arrays, **header)
