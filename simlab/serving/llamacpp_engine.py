"""llama.cpp, in an environment of its own, as an engine of the lab."""

from collections.abc import Mapping
from pathlib import Path

from simlab.checkpoints.gguf_writer import save_gguf
from simlab.core.catalog import lookup
from simlab.core.manifest import Json
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.serving.served_engine import ServedEngine

GGUF_PARITY = {"f32": 1e-3, "f16": 0.1, "bf16": 0.3, "q8_0": 0.3, "q5_0": 0.6, "q4_0": 1.5, "q4_1": 1.5}
"""Nats by which a sync may move the probe, by the format of the matrices."""


class LlamaCppEngine(ServedEngine):
    """llama.cpp in the environment of `python`, with matrices `stored` in one of its formats.

    A context manager. It tells no experts. Sequences have up to `context` tokens; `timeout` is in seconds,
    for each answer.
    """

    server = "llamacpp_server.py"
    install = "python scripts/make_env.py llamacpp"

    def __init__(
        self, python: str | Path | None, *, stored: str = "q8_0", context: int = 512, timeout: float = 600.0
    ):
        """Start the server. Raises `EngineError` saying how to install it if that fails."""
        parity, self.context = lookup(GGUF_PARITY, stored, "GGUF format"), context
        super().__init__(f"llamacpp {stored}", python, dtype=stored, parity=parity, timeout=timeout)

    def loading(self, config: TransformerConfig) -> Mapping[str, Json]:
        """Return the longest sequence too."""
        return {**super().loading(config), "context": self.context}

    def write(self, folder: Path, config: TransformerConfig, params: Params) -> Path:
        """Write the weights as a GGUF file."""
        return save_gguf(folder / "policy.gguf", config, params, stored=self.dtype)
