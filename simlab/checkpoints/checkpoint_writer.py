"""Checkpoints out: Hugging Face folders, complete or not there."""

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import jax
import numpy as np

from simlab.checkpoints.checkpoint_reader import INDEX, SINGLE
from simlab.checkpoints.compressed_tensors import in_int8, quantization_config
from simlab.checkpoints.hugging_face_config import config_values
from simlab.checkpoints.layouts import hugging_face_layout
from simlab.checkpoints.param_tree import leaves_of, shapes_of
from simlab.checkpoints.safetensors_file import Planned, write_safetensors
from simlab.checkpoints.tokenizer import tokenizer_files
from simlab.core.atomic import write_atomically
from simlab.core.catalog import lookup
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.tasks.vocabulary import END, PAD, VOCABULARY_SIZE

W8A8 = "w8a8"
STORAGE = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", W8A8: "BF16"}
"""The formats in which weights can be saved -> what safetensors calls them.

`w8a8` is that of compressed-tensors for vLLM: matrices int8, what they multiply rounded to int8 as well, per
token; embedding, head, norms, routers and experts stay BF16. It cannot be read back.
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
    """Write a Hugging Face folder that transformers and vLLM load; float32 comes back bit for bit.

    It has `config.json`, `generation_config.json`, the weights as `dtype` (nearest, ties to even) in files of
    up to `shard_bytes`, and a tokenizer: that of the folder `tokenizer_from`, or else, for a model over the
    lab's vocabulary, one token per character. A checkpoint that is there already is replaced whole. Returns
    the folder.

    Raises `ValueError` for parameters that are not those of `config`, a weight too large for `dtype`, a
    config that no Hugging Face architecture has, or a folder that holds other things.
    """
    path, stored_as = Path(path).resolve(), lookup(STORAGE, dtype, "dtype")
    for name, value in (("shard_bytes", shard_bytes), ("max_position_embeddings", max_position_embeddings)):
        if value < 1:
            raise ValueError(f"bad {name} {value}; allowed: 1 or more")
    _check_params(config, params)
    files = _small_files(config, dtype, max_position_embeddings, tokenizer_from)
    _check_replaceable(path)
    building = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        tensors = _planned(config, params, stored_as)
        _write_weights(building, in_int8(tensors) if dtype == W8A8 else tensors, shard_bytes)
        for name, content in files.items():
            write_atomically(building / name, lambda file, content=content: file.write(content))
        _replace(path, building)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return path


def _check_params(config: TransformerConfig, params: Params) -> None:
    def described(tree: Params) -> dict[str, str]:
        leaves = leaves_of(tree).items()
        return {".".join(map(str, place)): f"{leaf.dtype}{list(leaf.shape)}" for place, leaf in leaves}

    expected, found = described(shapes_of(config)), described(params)
    for place in sorted(expected.keys() | found.keys()):
        wanted, given = expected.get(place, "none"), found.get(place, "missing")
        if wanted != given:
            raise ValueError(f"parameter {place} is {given}; the config asks for {wanted}")


def _small_files(
    config: TransformerConfig, dtype: str, longest: int, tokenizer_from: str | Path | None
) -> dict[str, bytes]:
    """Return the contents of all files but the weights, by name."""
    values = config_values(config, "bfloat16" if dtype == W8A8 else dtype, longest)
    if dtype == W8A8:
        values["quantization_config"] = quantization_config(config)
    if tokenizer_from is not None:
        source = Path(tokenizer_from)
        copied = {name: source / name for name in _COPIED if (source / name).is_file()}
        if not copied:
            raise FileNotFoundError(f"{source} holds no tokenizer; looked for {', '.join(_COPIED)}")
        return {"config.json": _json(values)} | {name: file.read_bytes() for name, file in copied.items()}
    special: dict[str, Any] = {}
    tokenizer: dict[str, Any] = {}
    if config.vocab_size == VOCABULARY_SIZE:
        special = {"eos_token_id": END, "pad_token_id": PAD}
        tokenizer = tokenizer_files(longest)
    contents = {"config.json": {**values, **special}, "generation_config.json": special, **tokenizer}
    return {name: _json(content) for name, content in contents.items()}


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _planned(config: TransformerConfig, params: Params, stored_as: str) -> list[Planned]:
    leaves = leaves_of(jax.tree.map(np.asarray, params))
    return [
        Planned(name, slot.view(leaves[slot.place]), stored_as)
        for name, slot in hugging_face_layout(config).items()
    ]


def _write_weights(folder: Path, tensors: list[Planned], shard_bytes: int) -> None:
    """Write one file, or as many as `shard_bytes` makes necessary and their index."""
    shards: list[list[Planned]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.nbytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.nbytes
    if len(shards) == 1:
        write_safetensors(folder / SINGLE, tensors)
        return
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_safetensors(folder / name, shard)
        weight_map |= {tensor.name: name for tensor in shard}
    total = sum(tensor.nbytes for tensor in tensors)
    index = _json({"metadata": {"total_size": total}, "weight_map": weight_map})
    write_atomically(folder / INDEX, lambda file: file.write(index))


def _check_replaceable(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"{path} is a file; a checkpoint is a folder")
    own = {"config.json", INDEX, *_COPIED}
    other = [p.name for p in path.iterdir() if p.name not in own and not p.match("model*.safetensors")]
    if other:
        raise ValueError(f"{path} holds {min(other)!r}, no part of a checkpoint; choose another folder")


def _replace(path: Path, building: Path) -> None:
    """Put the folder `building` where `path` is; a reader finds the old checkpoint, the new one, or none."""
    old = building.with_suffix(".old")
    if path.exists():
        path.rename(old)
    building.rename(path)
    shutil.rmtree(old, ignore_errors=True)
