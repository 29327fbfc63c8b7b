"""Checkpoints in: Hugging Face folders and GGUF files, checked by their headers, then read leaf by leaf."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from simlab.checkpoints.gguf_reader import read_gguf
from simlab.checkpoints.hugging_face_config import read_config
from simlab.checkpoints.layouts import FUSED_EXPERTS, Layout, Slot, gguf_layout, hugging_face_layout
from simlab.checkpoints.param_tree import Place, aligned, leaves_of, place_of, shapes_of
from simlab.checkpoints.safetensors_file import Stored, read_header, row_blocks
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""The weights of a small checkpoint, and the list of the files of a large one."""

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose names, shapes and formats have been checked, and whose weights are still on disk."""

    path: Path
    config: TransformerConfig
    layout: Layout
    tensors: Mapping[str, Stored]


def load_checkpoint(path: str | Path) -> tuple[TransformerConfig, Params]:
    """Return the config and the float32 parameters of a Hugging Face folder or a `.gguf` file.

    Widening from F16, BF16 or a quantized type is exact. Beyond the parameters themselves, some megabytes are
    held at a time. Errors are those of `open_checkpoint`.
    """
    checkpoint = open_checkpoint(path)
    names: dict[Place, list[str]] = {}
    for name, slot in checkpoint.layout.items():
        names.setdefault(slot.place, []).append(name)

    def loaded(place: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        array = aligned(leaf.shape)
        for name in names[place_of(place)]:
            _fill(array, checkpoint.layout[name], checkpoint.tensors[name])
        return jax.device_put(array)

    return checkpoint.config, jax.tree_util.tree_map_with_path(loaded, shapes_of(checkpoint.config))


def _fill(leaf: np.ndarray, slot: Slot, tensor: Stored) -> None:
    view = np.atleast_2d(slot.view(leaf))
    height, width = view.shape[-2:]
    for number, index in enumerate(np.ndindex(view.shape[:-2])):
        for block in row_blocks(height, width):
            rows = tensor.rows(number * height + block.start, number * height + block.stop)
            view[index][block if slot.order is None else slot.order[block]] = rows


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Read and check everything but the weights.

    Raises `FileNotFoundError` or `ValueError` naming the file and what is wrong with it: an architecture or
    option that the lab does not have, a tensor that is missing, too many or of another shape, a file that is
    truncated, corrupt or a pickle, an index that points outside its folder; `ImportError` for a `.gguf` file
    without the package `gguf`.
    """
    path = Path(path)
    if path.suffix in _PICKLES:
        raise ValueError(f"{path} is a pickle, which runs code when it is read; convert it to safetensors")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give a folder with config.json or a .gguf file")
    if path.suffix == ".gguf":
        checkpoint = _open_gguf(path)
    elif path.is_dir():
        checkpoint = _open_folder(path)
    else:
        raise ValueError(f"{path} is no checkpoint; give a folder with config.json or a .gguf file")
    _check_tensors(checkpoint)
    return checkpoint


def _open_gguf(path: Path) -> Checkpoint:
    config, tensors, rotate_pairs = read_gguf(path)
    _check_counts(path, config, len(tensors), config.num_hidden_layers)
    return Checkpoint(path, config, gguf_layout(config, rotate_pairs), tensors)


def _open_folder(folder: Path) -> Checkpoint:
    config = read_config(_read_json(folder / "config.json"), folder / "config.json")
    tensors: dict[str, Stored] = {}
    for file in _weight_files(folder):
        found = read_header(file)
        if twice := set(found) & set(tensors):
            raise ValueError(f"tensor {min(twice)!r} is in {file} and in {tensors[min(twice)].file}")
        tensors |= found
    fused = FUSED_EXPERTS in tensors
    listed = config.num_hidden_layers * (1 if fused else max(config.num_experts, 1))
    _check_counts(folder, config, len(tensors), listed)
    return Checkpoint(folder, config, hugging_face_layout(config, fused), tensors)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist; a Hugging Face checkpoint has one")
    try:
        values = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file} is no table of settings")
    return values


def _weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder: the single one, or those that its index names."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    index = folder / INDEX
    if not index.is_file():
        pickles = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES)
        if pickles:
            raise ValueError(
                f"{folder} holds its weights as a pickle ({pickles[0]}), which runs code when it is read; "
                "convert it to safetensors"
            )
        raise FileNotFoundError(f"{folder} holds neither {SINGLE} nor {INDEX}")
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} lacks weight_map")
    files = []
    for name in dict.fromkeys(map(str, weight_map.values())):
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise ValueError(f"{index} names {name!r}; allowed: .safetensors files beside it")
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} does not exist; {INDEX} names it")
        files.append(folder / name)
    return files


def _check_counts(path: Path, config: TransformerConfig, stored: int, needed: int) -> None:
    # Before a table is made whose length the config decides.
    if needed > stored:
        experts = f" of {config.num_experts} experts" if config.num_experts else ""
        raise ValueError(
            f"{path} holds {stored} tensors, too few for {config.num_hidden_layers} layers{experts}"
        )


def _check_tensors(checkpoint: Checkpoint) -> None:
    path, config, layout, tensors = checkpoint.path, checkpoint.config, checkpoint.layout, checkpoint.tensors
    missing = [name for name in layout if name not in tensors]
    # Tables that older files store and every model computes; and a head that is tied and stored all the same.
    stored_tied_head = config.tie_word_embeddings and _HEAD in tensors
    ignored = {name for name in tensors if name.endswith("rotary_emb.inv_freq")}
    ignored |= {_HEAD} if stored_tied_head else set()
    extra = sorted(set(tensors) - set(layout) - ignored)
    for wrong, word in ((missing, "lacks"), (extra, "has the unexpected")):
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise ValueError(f"{path} {word} tensor {wrong[0]!r}{more}")
    shapes = {place: leaf.shape for place, leaf in leaves_of(shapes_of(config)).items()}
    for name, slot in layout.items():
        expected, found = slot.stored_shape(shapes[slot.place]), tensors[name].shape
        if expected != found:
            raise ValueError(
                f"tensor {name!r} in {tensors[name].file} has shape {list(found)}; expected {list(expected)}"
            )
    if stored_tied_head and not _are_equal(tensors[_HEAD], tensors[_EMBEDDING]):
        raise ValueError(f"{path}: tie_word_embeddings is true, but {_HEAD!r} is not the embedding")


def _are_equal(one: Stored, other: Stored) -> bool:
    return one.shape == other.shape and all(
        np.array_equal(one.rows(block.start, block.stop), other.rows(block.start, block.stop))
        for block in row_blocks(*one.shape)
    )
