"""Trees of arrays on disk, written atomically: policies as `.npz`, unfinished runs as safetensors.

A tree's arrays are named by their place in it. Neither format can hold code.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import safetensors
import safetensors.numpy

from simlab.core.atomic import write_atomically

Tree = TypeVar("Tree")
Arrays = Mapping[str, np.ndarray]


def save_tree(path: Path, tree: Any) -> Path:
    """Write the arrays of `tree` to `path`; keys of `jax.random` are kept as their data."""
    named = named_arrays(tree)
    return write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **named))


def load_tree(path: Path, like: Tree) -> Tree:
    """Return the tree in `path`, which must have the places, shapes and types of `like`.

    Raises `ValueError` naming a place that is missing, too many, or of another shape or type.
    """
    with np.load(path) as stored:
        return restored(dict(stored), like, path)


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Return the arrays of `tree` on the host, by place; keys of `jax.random` as their data."""
    return {
        jax.tree_util.keystr(place): np.asarray(_raw(leaf))
        for place, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def restored(arrays: Arrays, like: Tree, where: Any) -> Tree:
    """Return the tree whose `named_arrays` are `arrays`, from `where`; raises as `load_tree` does."""
    expected = {jax.tree_util.keystr(place) for place, _ in jax.tree_util.tree_leaves_with_path(like)}
    if expected != set(arrays):
        raise ValueError(f"{where} and the wanted tree differ in {sorted(expected ^ set(arrays))}")

    def loaded(place, leaf):
        name = jax.tree_util.keystr(place)
        array, wanted = arrays[name], jax.eval_shape(_raw, leaf)
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            raise ValueError(
                f"{name} in {where} is {array.dtype}{array.shape}, not {wanted.dtype}{wanted.shape}"
            )
        placed = jax.numpy.asarray(array)
        return jax.random.wrap_key_data(placed) if _is_key(leaf) else placed

    return jax.tree_util.tree_map_with_path(loaded, like)


@dataclass(frozen=True)
class Progress:
    """An unfinished run on the host: the `named_arrays` of its state, and the metrics of its steps so far."""

    state: Arrays
    metrics: Arrays


class DamagedCheckpointError(ValueError):
    """A checkpoint that no longer is what was written."""


def save_progress(path: Path, progress: Progress) -> Path:
    """Write an unfinished run to `path`."""
    arrays = {f"state {name}": np.asarray(array) for name, array in progress.state.items()}
    arrays |= {f"metrics {name}": np.asarray(array) for name, array in progress.metrics.items()}
    about = {"sha256": _digest(arrays), "device": _device()}
    return write_atomically(path, lambda file: file.write(safetensors.numpy.save(arrays, about)))


def load_progress(path: Path) -> Progress:
    """Return the unfinished run in `path`.

    Raises `DamagedCheckpointError` for a file that is not what was written, and `ValueError` for one from
    another kind of device, on which the run would go on with other bits.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise DamagedCheckpointError(f"{path} cannot be read: {error}") from error
    if about.get("sha256") != _digest(arrays):
        raise DamagedCheckpointError(f"{path} is not what was written: its checksum differs")
    if about.get("device") != _device():
        raise ValueError(f"{path} was written on {about.get('device')}; this is {_device()}")
    parts: dict[str, dict[str, np.ndarray]] = {"state": {}, "metrics": {}}
    for name, array in arrays.items():
        part, _, place = name.partition(" ")
        parts[part][place] = array
    return Progress(**parts)


def _digest(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _device() -> str:
    return jax.devices()[0].device_kind


def _is_key(leaf) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf):
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
