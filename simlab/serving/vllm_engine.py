"""vLLM as an engine, in its own environment or in this process."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from simlab.checkpoints.checkpoint_writer import W8A8
from simlab.core.catalog import lookup
from simlab.core.json_value import Json
from simlab.models.config import TransformerConfig
from simlab.serving.served_engine import PARITY, ServedEngine

WEIGHTS = {**PARITY, W8A8: 1.0}
"""Tolerance of the parity check by the format of weights, nats; w8a8 computes in BF16 around int8."""

KV_CACHES = {"auto": 0.0, "fp8": 0.5, "fp8_e5m2": 0.7}
"""Additional tolerance of the parity check by the format of keys and values, nats."""


class VllmEngine(ServedEngine):
    """vLLM in the environment of `python`, or in this process if that is None; a context manager.

    Args:
        python: Interpreter of an environment with vLLM.
        dtype: Format of weights and activations. `w8a8` is int8 of compressed-tensors in the projections
            except experts, and BF16 elsewhere.
        kv_cache: Format of keys and values; `auto` uses `dtype`.
        repack: Whether to repair experts and tied heads after a reload in place. vLLM 0.32 on a CPU leaves
            them corrupt and stale, which the parity check detects. `w8a8` reloads into a new engine.
        parity: Tolerance of the parity check, nats; by default that of `dtype` and `kv_cache`.
        timeout: Maximum time per request, seconds.
    """

    server = "vllm_server.py"
    environment = "vllm"
    packages = "'simlab[vllm]'"

    def __init__(
        self,
        python: str | Path | None,
        *,
        dtype: str = "bfloat16",
        kv_cache: str = "auto",
        repack: bool = True,
        parity: float | None = None,
        timeout: float = 600.0,
    ):
        """Start the server. Raises `EngineError` with the install command if that fails."""
        default = lookup(WEIGHTS, dtype, "dtype") + lookup(KV_CACHES, kv_cache, "KV cache")
        parity = default if parity is None else parity
        self.kv_cache, self.repack = kv_cache, repack
        name = f"vllm {dtype}" + ("" if kv_cache == "auto" else f" kv {kv_cache}")
        super().__init__(name, python, dtype=dtype, parity=parity, timeout=timeout)

    def describe(self) -> Mapping[str, Json]:
        """Return name, storage, versions, and the format of keys and values."""
        return {**super().describe(), "kv_cache": self.kv_cache}

    def get_load_options(self, config: TransformerConfig) -> Mapping[str, Json]:
        """Return the options that decide whether and how a checkpoint is reloaded in place."""
        dtype = "bfloat16" if self.dtype == W8A8 else self.dtype
        return {
            "dtype": dtype,
            "shape": asdict(config),
            "kv_cache_dtype": self.kv_cache,
            "repack": self.repack,
            # vLLM 0.32 on a CPU reads freed scales after it reloaded int8 matrices.
            "reload": self.dtype != W8A8,
        }
