"""vLLM as an engine of the lab: in an environment of its own, or in this process."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from simlab.checkpoints.checkpoint_writer import W8A8
from simlab.core.catalog import lookup
from simlab.core.manifest import Json
from simlab.models.config import TransformerConfig
from simlab.serving.served_engine import PARITY, ServedEngine

WEIGHTS = {**PARITY, W8A8: 1.0}
"""Formats of weights, and the nats by which a sync may move the probe; w8a8 computes in BF16 around int8."""

KV_CACHES = {"auto": 0.0, "fp8": 0.5, "fp8_e5m2": 0.7}
"""Formats of keys and values, and the nats by which each may move the probe of a sync further."""


class VllmEngine(ServedEngine):
    """vLLM in the environment of `python`, in this process if that is None; a context manager.

    Weights and activations are `dtype`, keys and values that too or `kv_cache`; `w8a8` is int8 of
    compressed-tensors in the products of projections, experts excepted, and BF16 elsewhere. Other weights of
    one config are reloaded in place, those of `w8a8` into a new engine. `repack` False leaves reloaded
    experts and tied heads as vLLM 0.32 on a CPU has them, corrupt and stale, which the parity of the sync
    finds; `parity` sets what it allows, in nats. `timeout` is in seconds, for each answer.
    """

    server = "vllm_server.py"
    install = "python scripts/make_env.py vllm"

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
        """Start the server. Raises `EngineError` saying how to install it if that fails."""
        usual = lookup(WEIGHTS, dtype, "dtype") + lookup(KV_CACHES, kv_cache, "KV cache")
        parity = usual if parity is None else parity
        self.kv_cache, self.repack = kv_cache, repack
        name = f"vllm {dtype}" + ("" if kv_cache == "auto" else f" kv {kv_cache}")
        super().__init__(name, python, dtype=dtype, parity=parity, timeout=timeout)

    def describe(self) -> Mapping[str, Json]:
        """Return name, storage, versions, and the format of keys and values."""
        return {**super().describe(), "kv_cache": self.kv_cache}

    def loading(self, config: TransformerConfig) -> Mapping[str, Json]:
        """Return what decides whether a checkpoint can be reloaded in place, and how."""
        dtype = "bfloat16" if self.dtype == W8A8 else self.dtype
        return {
            "dtype": dtype,
            "shape": asdict(config),
            "kv_cache_dtype": self.kv_cache,
            "repack": self.repack,
            # vLLM 0.32 on a CPU reads freed scales after it reloaded int8 matrices.
            "reload": self.dtype != W8A8,
        }
