"""Quantize to W8A8 of compressed-tensors: int8 matrices with a scale per row, for vLLM."""

from collections.abc import Iterable

import numpy as np

from simlab.checkpoints.safetensors_file import TensorToWrite
from simlab.core.json_value import Json
from simlab.models.config import TransformerConfig

# vLLM on CPU has no int8 kernel for experts. Quantizing the router saves nothing.
_MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_LARGEST = 127


def build_quantization_config(config: TransformerConfig) -> dict[str, Json]:
    """Return the quantization config: symmetric, weights per channel, activations per token."""
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


def quantize_to_int8(tensors: Iterable[TensorToWrite]) -> list[TensorToWrite]:
    """Quantize projections, except those of experts, to int8 with a float32 scale per row.

    The scale is the largest magnitude of the row divided by 127, or 1 for a row of zeros. Rounds to nearest,
    ties to even.

    Reference: compressed-tensors int-quantized; vLLM CompressedTensorsW8A8Int8.
    """
    planned: list[TensorToWrite] = []
    for tensor in tensors:
        if ".experts." in tensor.name or not tensor.name.endswith(tuple(f"{x}.weight" for x in _MATRICES)):
            planned.append(tensor)
            continue
        scale = np.abs(tensor.values).max(axis=1, keepdims=True) / np.float32(_LARGEST)
        scale = np.where(scale > 0, scale, np.float32(1))
        integers = np.rint(tensor.values / scale).astype(np.int8)
        planned += [
            tensor._replace(values=integers, dtype="I8"),
            TensorToWrite(f"{tensor.name}_scale", scale, "F32"),
        ]
    return planned
