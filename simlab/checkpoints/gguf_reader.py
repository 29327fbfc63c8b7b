"""Read GGUF files of llama.cpp: metadata as a config, tensors dequantized in blocks."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from simlab.checkpoints.hugging_face_config import JsonObject
from simlab.checkpoints.safetensors_file import StoredTensor
from simlab.core.catalog import lookup
from simlab.models.config import TransformerConfig

ARCHITECTURES = {"qwen3": "qwen3", "qwen3moe": "qwen3_moe", "qwen2": "qwen2", "llama": "llama"}
"""Architecture in llama.cpp -> model type in Hugging Face."""

# Exceptions of the package `gguf` for truncated or corrupt files.
_BROKEN = (ValueError, KeyError, IndexError, TypeError, OverflowError, UnicodeDecodeError)


def import_gguf() -> ModuleType:
    """Return the package `gguf`.

    Raises:
        ImportError: The package is not installed.
    """
    try:
        import gguf  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("GGUF files need the package gguf: pip install 'simlab[hf]'") from error
    return gguf


def read_gguf(path: Path) -> tuple[TransformerConfig, dict[str, StoredTensor], bool]:
    """Return config, tensors by name, and whether q and k rotate neighboring pairs (architecture `llama`).

    Raises:
        ImportError: The package `gguf` is not installed.
        ValueError: The file is not a GGUF file, is corrupt, or has an unsupported option.
    """
    gguf = import_gguf()
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{path} is not a GGUF file.")
    try:
        reader = gguf.GGUFReader(path)
        tensors = {tensor.name: _tensor(path, tensor) for tensor in reader.tensors}
        # Skip the vocabulary and other arrays, which are slow to read.
        values = {
            name: field.contents() for name, field in reader.fields.items() if field.types[0].name != "ARRAY"
        }
    except _BROKEN as error:
        raise ValueError(f"{path} is a truncated or corrupt GGUF file: {error}") from error
    del reader
    for name, tensor in tensors.items():
        _check_readable(name, tensor)
    config = _config(values, tensors, path)
    return config, tensors, values["general.architecture"] == "llama"


def _tensor(path: Path, tensor: Any) -> StoredTensor:
    gguf, kind = import_gguf(), tensor.tensor_type
    shape = tuple(int(size) for size in reversed(tensor.shape.tolist()))
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    row_bytes = shape[-1] // block * block_bytes
    decode = partial(gguf.quants.dequantize, qtype=kind)
    return StoredTensor(path, kind.name, shape, int(tensor.data_offset), row_bytes, decode)


def _check_readable(name: str, tensor: StoredTensor) -> None:
    try:
        tensor.decode(np.zeros((1, tensor.row_bytes), np.uint8))
    except NotImplementedError as error:
        raise ValueError(
            f"type of tensor {name!r} in {tensor.file} must be F32, F16, BF16, Q8_0, Q4_0, Q4_K or another "
            f"that the package gguf can dequantize, got {tensor.dtype}."
        ) from error


def _config(values: Mapping[str, Any], tensors: Mapping[str, StoredTensor], path: Path) -> TransformerConfig:
    architecture = values.get("general.architecture")
    model_type = lookup(ARCHITECTURES, architecture, "architecture")  # pyright: ignore[reportArgumentType]
    prefix = f"{architecture}."
    json = JsonObject(
        {name.removeprefix(prefix): x for name, x in values.items() if name.startswith(prefix)}, path
    )
    scaling = json.values.get("rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in tensors:
        raise ValueError(f"{path}: rope scaling {scaling!r} is not supported.")
    moe = model_type == "qwen3_moe"
    if not moe and json.values.get("expert_count"):
        raise ValueError(f"{path}: experts in architecture {architecture!r} are not supported.")
    if "token_embd.weight" not in tensors:
        raise ValueError(f"{path} must have the tensor 'token_embd.weight'.")
    heads, width = json.integer("attention.head_count"), json.integer("embedding_length")
    return TransformerConfig(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=width,
        num_hidden_layers=json.integer("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=json.integer("attention.head_count_kv", heads),
        head_dim=json.integer("attention.key_length", width // heads),
        intermediate_size=json.integer("feed_forward_length"),
        qk_norm=model_type in ("qwen3", "qwen3_moe"),
        attention_bias=model_type == "qwen2",
        tie_word_embeddings="output.weight" not in tensors,
        rope_theta=json.number("rope.freq_base", 10000.0),
        rms_norm_eps=json.number("attention.layer_norm_rms_epsilon", 1e-6),
        **(_experts(json) if moe else {}),
    )


def _experts(json: JsonObject) -> dict[str, Any]:
    return {
        "num_experts": json.integer("expert_count"),
        "num_experts_per_tok": json.integer("expert_used_count"),
        "moe_intermediate_size": json.integer("expert_feed_forward_length"),
        # llama.cpp always normalizes the routing weights in this architecture.
        "norm_topk_prob": True,
    }
