"""Read Hugging Face directories and GGUF files: check the headers, then read leaf by leaf."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from simlab.checkpoints.gguf_reader import read_gguf
from simlab.checkpoints.hugging_face_config import parse_config_json, read_json_object
from simlab.checkpoints.layouts import FUSED_EXPERTS, Layout, Slot, gguf_layout, hugging_face_layout
from simlab.checkpoints.param_tree import LeafPath, allocate_aligned, leaf_path, leaves_of
from simlab.checkpoints.safetensors_file import StoredTensor, read_header, row_blocks
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params, shapes_of

WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
"""The weights file of an unsharded checkpoint, and the index of a sharded one."""

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint with verified names, shapes and formats, and unread weights."""

    path: Path
    config: TransformerConfig
    layout: Layout
    tensors: Mapping[str, StoredTensor]


def load_checkpoint(path: str | Path) -> tuple[TransformerConfig, Params]:
    """Load a Hugging Face directory or a `.gguf` file.

    Conversion from F16, BF16 or a quantized type is exact. In addition to the parameters, loading needs a few
    megabytes of memory.

    Args:
        path: Directory with `config.json`, or `.gguf` file.

    Returns:
        The config and the float32 parameters.

    Raises:
        FileNotFoundError, ValueError, ImportError: See `open_checkpoint`.

    Example:
        >>> config, params = load_checkpoint("checkpoints/SmolLM2-135M")
    """
    checkpoint = open_checkpoint(path)
    tensor_names: dict[LeafPath, list[str]] = {}
    for name, slot in checkpoint.layout.items():
        tensor_names.setdefault(slot.path, []).append(name)

    def load_leaf(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        array = allocate_aligned(leaf.shape)
        for name in tensor_names[leaf_path(path)]:
            _fill(array, checkpoint.layout[name], checkpoint.tensors[name])
        return jax.device_put(array)

    return checkpoint.config, jax.tree_util.tree_map_with_path(load_leaf, shapes_of(checkpoint.config))


def _fill(leaf: np.ndarray, slot: Slot, tensor: StoredTensor) -> None:
    view = np.atleast_2d(slot.view(leaf))
    height, width = view.shape[-2:]
    for number, index in enumerate(np.ndindex(view.shape[:-2])):
        for block in row_blocks(height, width):
            rows = tensor.rows(number * height + block.start, number * height + block.stop)
            view[index][block if slot.order is None else slot.order[block]] = rows


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Read and check everything except the weights.

    Args:
        path: Directory with `config.json`, or `.gguf` file.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: The architecture or an option is not supported; a tensor is missing, unexpected or has the
            wrong shape; a file is truncated, corrupt or a pickle; the index points outside its directory.
        ImportError: A `.gguf` file without the package `gguf`.
    """
    path = Path(path)
    if path.suffix in _PICKLES:
        raise ValueError(f"{path} is a pickle, which can run code. Convert it to safetensors.")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Pass a directory with config.json or a .gguf file.")
    if path.suffix == ".gguf":
        checkpoint = _open_gguf(path)
    elif path.is_dir():
        checkpoint = _open_folder(path)
    else:
        raise ValueError(f"path must be a directory with config.json or a .gguf file, got {path}.")
    _check_tensors(checkpoint)
    return checkpoint


def _open_gguf(path: Path) -> Checkpoint:
    config, tensors, rotate_pairs = read_gguf(path)
    _check_counts(path, config, len(tensors), config.num_hidden_layers)
    return Checkpoint(path, config, gguf_layout(config, rotate_pairs), tensors)


def _open_folder(folder: Path) -> Checkpoint:
    config = parse_config_json(read_json_object(folder / "config.json"), folder / "config.json")
    tensors: dict[str, StoredTensor] = {}
    for file in _weight_files(folder):
        header = read_header(file)
        if twice := set(header) & set(tensors):
            raise ValueError(f"tensor {min(twice)!r} is in {file} and in {tensors[min(twice)].file}")
        tensors |= header
    fused = FUSED_EXPERTS in tensors
    listed = config.num_hidden_layers * (1 if fused else max(config.num_experts, 1))
    _check_counts(folder, config, len(tensors), listed)
    return Checkpoint(folder, config, hugging_face_layout(config, fused), tensors)


def _weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a directory: the only one, or those of the index."""
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    index = folder / INDEX_FILE
    if not index.is_file():
        if pickles := sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES):
            raise ValueError(
                f"{folder} has a pickle ({pickles[0]}), which can run code. Convert it to safetensors."
            )
        raise FileNotFoundError(f"{folder} must have {WEIGHTS_FILE} or {INDEX_FILE}.")
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} must have weight_map.")
    files = []
    for name in dict.fromkeys(map(str, weight_map.values())):
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise ValueError(
                f"weight_map in {index} must name .safetensors files of its directory, got {name!r}."
            )
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} does not exist, but {INDEX_FILE} names it.")
        files.append(folder / name)
    return files


def _check_counts(path: Path, config: TransformerConfig, stored: int, needed: int) -> None:
    # Check before building a layout with a size from an untrusted config.
    if needed > stored:
        experts = f" of {config.num_experts} experts" if config.num_experts else ""
        raise ValueError(
            f"{path} has {stored} tensors, too few for {config.num_hidden_layers} layers{experts}."
        )


def _check_tensors(checkpoint: Checkpoint) -> None:
    path, config, layout, tensors = checkpoint.path, checkpoint.config, checkpoint.layout, checkpoint.tensors
    missing = [name for name in layout if name not in tensors]
    # Ignore tables that models compute and older files store, and a tied head that is stored.
    stored_tied_head = config.tie_word_embeddings and _HEAD in tensors
    ignored = {name for name in tensors if name.endswith("rotary_emb.inv_freq")}
    ignored |= {_HEAD} if stored_tied_head else set()
    extra = sorted(set(tensors) - set(layout) - ignored)
    for wrong, word in ((missing, "lacks"), (extra, "has the unexpected")):
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise ValueError(f"{path} {word} tensor {wrong[0]!r}{more}")
    shapes = {leaf_path: leaf.shape for leaf_path, leaf in leaves_of(shapes_of(config)).items()}
    for name, slot in layout.items():
        expected, actual = slot.get_stored_shape(shapes[slot.path]), tensors[name].shape
        if expected != actual:
            raise ValueError(
                f"{name!r} in {tensors[name].file} must have shape {list(expected)}, got {list(actual)}."
            )
    if stored_tied_head and not _are_equal(tensors[_HEAD], tensors[_EMBEDDING]):
        raise ValueError(f"{path}: {_HEAD!r} must equal the embedding, since tie_word_embeddings is true.")


def _are_equal(one: StoredTensor, other: StoredTensor) -> bool:
    return one.shape == other.shape and all(
        np.array_equal(one.rows(block.start, block.stop), other.rows(block.start, block.stop))
        for block in row_blocks(*one.shape)
    )
