"""Write Hugging Face directories atomically."""

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import jax
import numpy as np

from simlab.checkpoints.checkpoint_reader import INDEX_FILE, WEIGHTS_FILE
from simlab.checkpoints.compressed_tensors import build_quantization_config, quantize_to_int8
from simlab.checkpoints.hugging_face_config import to_config_json
from simlab.checkpoints.layouts import hugging_face_layout
from simlab.checkpoints.param_tree import leaves_of
from simlab.checkpoints.safetensors_file import TensorToWrite, write_safetensors
from simlab.checkpoints.tokenizer import tokenizer_files
from simlab.core.atomic import write_atomically
from simlab.core.catalog import lookup
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params, shapes_of
from simlab.tasks.vocabulary import EOS_TOKEN_ID, PAD_TOKEN_ID, VOCABULARY_SIZE

W8A8 = "w8a8"
STORAGE = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", W8A8: "BF16"}
"""Formats for saved weights -> names in safetensors.

`w8a8` is the int-quantized format of compressed-tensors for vLLM: int8 matrices, with activations quantized
to int8 per token. Embedding, head, norms, routers and experts stay BF16. `load_checkpoint` cannot read it.
"""

_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


def save_checkpoint(
    path: str | Path,
    config: TransformerConfig,
    params: Params,
    *,
    dtype: str = "float32",
    tokenizer_from: str | Path | None = None,
    max_position_embeddings: int = 4096,
    shard_bytes: int = 5_000_000_000,
) -> Path:
    """Write a Hugging Face directory that transformers and vLLM load; float32 is bit-exact.

    Writes `config.json`, `generation_config.json`, the weights and a tokenizer. Replaces an existing
    checkpoint atomically.

    Args:
        path: Directory of the checkpoint.
        config: Config of the model.
        params: Parameters of the model.
        dtype: Format of the weights, a key of `STORAGE`; rounds to nearest, ties to even.
        tokenizer_from: Directory with the tokenizer to copy. By default, a model over simlab's vocabulary
            gets a tokenizer with one token per character.
        max_position_embeddings: Maximum sequence length, tokens.
        shard_bytes: Maximum size of a weights file, bytes.

    Returns:
        The directory.

    Raises:
        ValueError: `params` do not match `config`, a weight exceeds the range of `dtype`, no Hugging Face
            architecture has this `config`, or the directory has other files.

    Example:
        >>> save_checkpoint("policy", MODELS["tiny"], params, dtype="bfloat16")
    """
    path, stored_as = Path(path).resolve(), lookup(STORAGE, dtype, "dtype")
    for name, value in (("shard_bytes", shard_bytes), ("max_position_embeddings", max_position_embeddings)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    _check_params(config, params)
    files = _build_other_files(config, dtype, max_position_embeddings, tokenizer_from)
    _check_replaceable(path)
    building = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        tensors = _plan_tensors(config, params, stored_as)
        _write_weights(building, quantize_to_int8(tensors) if dtype == W8A8 else tensors, shard_bytes)
        for name, content in files.items():
            write_atomically(building / name, lambda file, content=content: file.write(content))
        _replace(path, building)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return path


def _check_params(config: TransformerConfig, params: Params) -> None:
    def describe(tree: Params) -> dict[str, str]:
        leaves = leaves_of(tree).items()
        return {".".join(map(str, path)): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}

    expected, described = describe(shapes_of(config)), describe(params)
    for path in sorted(expected.keys() | described.keys()):
        wanted, actual = expected.get(path, "absent"), described.get(path, "missing")
        if wanted != actual:
            raise ValueError(f"parameter {path} must be {wanted}, got {actual}.")


def _build_other_files(
    config: TransformerConfig, dtype: str, longest: int, tokenizer_from: str | Path | None
) -> dict[str, bytes]:
    """Return the contents of all files except the weights, by name."""
    values = to_config_json(config, "bfloat16" if dtype == W8A8 else dtype, longest)
    if dtype == W8A8:
        values["quantization_config"] = build_quantization_config(config)
    if tokenizer_from is not None:
        source = Path(tokenizer_from)
        copied = {name: source / name for name in _COPIED if (source / name).is_file()}
        if not copied:
            raise FileNotFoundError(f"{source} must have a tokenizer file, one of {', '.join(_COPIED)}.")
        return {"config.json": _json(values)} | {name: file.read_bytes() for name, file in copied.items()}
    special: dict[str, Any] = {}
    tokenizer: dict[str, Any] = {}
    if config.vocab_size == VOCABULARY_SIZE:
        special = {"eos_token_id": EOS_TOKEN_ID, "pad_token_id": PAD_TOKEN_ID}
        tokenizer = tokenizer_files(longest)
    contents = {"config.json": {**values, **special}, "generation_config.json": special, **tokenizer}
    return {name: _json(content) for name, content in contents.items()}


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _plan_tensors(config: TransformerConfig, params: Params, stored_as: str) -> list[TensorToWrite]:
    leaves = leaves_of(jax.tree.map(np.asarray, params))
    return [
        TensorToWrite(name, slot.view(leaves[slot.path]), stored_as)
        for name, slot in hugging_face_layout(config).items()
    ]


def _write_weights(folder: Path, tensors: list[TensorToWrite], shard_bytes: int) -> None:
    """Write one file, or several of at most `shard_bytes` and their index."""
    shards: list[list[TensorToWrite]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.nbytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.nbytes
    if len(shards) == 1:
        write_safetensors(folder / WEIGHTS_FILE, tensors)
        return
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_safetensors(folder / name, shard)
        weight_map |= {tensor.name: name for tensor in shard}
    total = sum(tensor.nbytes for tensor in tensors)
    index = _json({"metadata": {"total_size": total}, "weight_map": weight_map})
    write_atomically(folder / INDEX_FILE, lambda file: file.write(index))


def _check_replaceable(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"path must be a directory, got the file {path}.")
    own = {"config.json", INDEX_FILE, *_COPIED}
    other = [p.name for p in path.iterdir() if p.name not in own and not p.match("model*.safetensors")]
    if other:
        raise ValueError(
            f"{path} has {min(other)!r}, which is not part of a checkpoint. Choose another directory."
        )


def _replace(path: Path, building: Path) -> None:
    """Move the directory `building` to `path`; a reader finds the old checkpoint, the new one, or none."""
    old = building.with_suffix(".old")
    if path.exists():
        path.rename(old)
    building.rename(path)
    shutil.rmtree(old, ignore_errors=True)
