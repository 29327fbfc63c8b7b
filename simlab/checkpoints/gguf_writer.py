"""Write GGUF files in the number formats of llama.cpp, without a vocabulary."""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from simlab.checkpoints.gguf_reader import ARCHITECTURES, import_gguf
from simlab.checkpoints.hugging_face_config import to_config_json
from simlab.checkpoints.layouts import gguf_layout
from simlab.checkpoints.param_tree import leaves_of
from simlab.core.catalog import lookup
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params

GGUF_STORAGE = {name.lower(): name for name in ("F32", "F16", "BF16", "Q8_0", "Q5_0", "Q4_0", "Q4_1")}
"""Formats for saved matrices -> names in llama.cpp."""


def save_gguf(path: str | Path, config: TransformerConfig, params: Params, *, stored: str = "q8_0") -> Path:
    """Write a `.gguf` file that llama.cpp loads, and return its path; replace an existing file.

    Matrices have the format `stored`, rounded by the package `gguf`. Norms, biases and routers are float32,
    as in llama.cpp's converter. The file has no vocabulary: tokens are numbers.

    Raises:
        ImportError: The package `gguf` is not installed.
        ValueError: The format is unknown, the rows of a matrix are not a multiple of its blocks, or
            `norm_topk_prob` is false, which llama.cpp does not support.
    """
    kind = lookup(GGUF_STORAGE, stored, "GGUF format")
    if config.num_experts and not config.norm_topk_prob:
        raise ValueError("norm_topk_prob must be True for llama.cpp, got False.")
    gguf, path = import_gguf(), Path(path)
    types = {hugging_face: name for name, hugging_face in ARCHITECTURES.items()}
    architecture = types[to_config_json(config, "float32", 4096)["model_type"]]
    building = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    writer = gguf.GGUFWriter(building, architecture)
    try:
        _add_config(writer, config)
        leaves = leaves_of(jax.tree.map(np.asarray, params))
        for name, slot in gguf_layout(config, architecture == "llama").items():
            values = slot.view(leaves[slot.path])
            values = np.ascontiguousarray(values if slot.order is None else values[slot.order])
            is_float32 = values.ndim == 1 or slot.path[-1] == "router"
            _add_tensor(gguf, writer, name, values, "F32" if is_float32 else kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        building.rename(path)
    finally:
        building.unlink(missing_ok=True)
    return path


def _add_config(writer: Any, config: TransformerConfig) -> None:
    writer.add_context_length(4096)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.num_experts:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _add_tensor(gguf: Any, writer: Any, name: str, values: np.ndarray, kind: str) -> None:
    number = gguf.GGMLQuantizationType[kind]
    block = gguf.GGML_QUANT_SIZES[number][0]
    if values.shape[-1] % block:
        raise ValueError(f"rows of {name} must be a multiple of {block} for {kind}, got {values.shape[-1]}.")
    writer.add_tensor(name, gguf.quants.quantize(values.astype(np.float32), number), raw_dtype=number)
