"""llama.cpp in its own environment as an engine."""

from collections.abc import Mapping
from pathlib import Path

from simlab.checkpoints.gguf_writer import save_gguf
from simlab.core.catalog import lookup
from simlab.core.json_value import Json
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.serving.served_engine import ServedEngine

GGUF_PARITY = {"f32": 1e-3, "f16": 0.1, "bf16": 0.3, "q8_0": 0.3, "q5_0": 0.6, "q4_0": 1.5, "q4_1": 1.5}
"""Tolerance of the parity check by the format of the matrices, nats."""


class LlamaCppEngine(ServedEngine):
    """llama.cpp in the environment of `python`, with matrices in the format `stored`; a context manager.

    It does not report experts. Sequences have up to `context` tokens; `timeout` is in seconds per request.
    """

    server = "llamacpp_server.py"
    environment = "llamacpp"
    packages = "'simlab[llamacpp]'"

    def __init__(
        self, python: str | Path | None, *, stored: str = "q8_0", context: int = 512, timeout: float = 600.0
    ):
        """Start the server. Raises `EngineError` with the install command if that fails."""
        parity, self.context = lookup(GGUF_PARITY, stored, "GGUF format"), context
        super().__init__(f"llamacpp {stored}", python, dtype=stored, parity=parity, timeout=timeout)

    def get_load_options(self, config: TransformerConfig) -> Mapping[str, Json]:
        """Return also the maximum sequence length."""
        return {**super().get_load_options(config), "context": self.context}

    def write_weights(self, folder: Path, config: TransformerConfig, params: Params) -> Path:
        """Write the weights as a GGUF file."""
        return save_gguf(folder / "policy.gguf", config, params, stored=self.dtype)
