"""W8A8 as compressed-tensors lays it out: int8 matrices, each row with a scale, read by vLLM."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from simlab.checkpoints.safetensors_file import Planned
from simlab.models.config import TransformerConfig

# vLLM on a CPU has no int8 kernel for experts, and in no build is the router worth quantizing.
_MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_LARGEST = 127


def quantization_config(config: TransformerConfig) -> dict[str, Any]:
    """Return what `config.json` says of `in_int8`: symmetric, per channel and, when it runs, per token."""
    shared = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**shared, "strategy": "channel", "dynamic": False},
        "input_activations": {**shared, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", *(["re:.*mlp.*"] if config.num_experts else [])],
    }


def in_int8(tensors: Iterable[Planned]) -> list[Planned]:
    """Return tensors with projections, those of experts excepted, as int8 and a float32 scale per row.

    The scale is the largest magnitude of the row over 127, 1 for a row of zeros; nearest, ties to even.
    Source: compressed-tensors int-quantized; vLLM CompressedTensorsW8A8Int8.
    """
    planned: list[Planned] = []
    for tensor in tensors:
        if ".experts." in tensor.name or not tensor.name.endswith(tuple(f"{x}.weight" for x in _MATRICES)):
            planned.append(tensor)
            continue
        scale = np.abs(tensor.values).max(axis=1, keepdims=True) / np.float32(_LARGEST)
        scale = np.where(scale > 0, scale, np.float32(1))
        whole = np.rint(tensor.values / scale).astype(np.int8)
        planned += [tensor._replace(values=whole, dtype="I8"), Planned(f"{tensor.name}_scale", scale, "F32")]
    return planned
