"""Arrays on disk, written atomically: policies, and unfinished runs with the metrics of their steps.

Both are `.npz` files; an array is named by its path in the tree. They cannot hold code, and every array has a
checksum.
"""

import contextlib
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

from simlab.core.atomic import write_atomically
from simlab.core.manifest import processor_family

UNREADABLE = (ValueError, TypeError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)
"""The errors of NumPy for a file that is no `.npz` or is damaged."""
METRICS = "metrics "
"""Prefix of the arrays that hold the metrics of an unfinished run."""
Tree = TypeVar("Tree")
Arrays = Mapping[str, np.ndarray]


class DamagedCheckpointError(ValueError):
    """Raised for a file that does not hold what was written."""


@dataclass(frozen=True)
class UnfinishedRun:
    """An unfinished run on the host: the `named_arrays` of its state, and the metrics of its steps so far."""

    state: Arrays
    metrics: Arrays


def save_tree(path: Path, tree: PyTree) -> Path:
    """Write the arrays of `tree` to `path`, compressed; keys of `jax.random` as their data."""
    return _write(path, named_arrays(tree), np.savez_compressed)


def load_tree(path: Path, like: Tree) -> Tree:
    """Return the tree in `path`, which must have the paths, shapes and types of `like`.

    Raises:
        ValueError: If an array is missing, unexpected, or of another shape or type.
        DamagedCheckpointError: If the file is not what was written.
    """
    return restore(_read(path), like, path)


def save_progress(path: Path, progress: UnfinishedRun) -> Path:
    """Write an unfinished run to `path`."""
    arrays = {f"state {name}": np.asarray(array) for name, array in progress.state.items()}
    arrays |= {f"{METRICS}{name}": np.asarray(array) for name, array in progress.metrics.items()}
    # Uncompressed: compression would save 7 percent and take forty times as long.
    return _write(path, {"device": np.array(processor_family()), **arrays}, np.savez)


def load_progress(path: Path) -> UnfinishedRun:
    """Return the unfinished run in `path`.

    Raises:
        ValueError: If another processor family wrote it, on which the run has other bits.
        DamagedCheckpointError: If the file is not what was written.
    """
    arrays = _read(path)
    device = str(arrays.pop("device", "an unknown device"))
    if device != (here := processor_family()):
        raise ValueError(f"{path} was written on {device}; this is {here}")
    parts: dict[str, dict[str, np.ndarray]] = {"state": {}, "metrics": {}}
    for name, array in arrays.items():
        part, _, tree_path = name.partition(" ")
        if part not in parts:
            raise DamagedCheckpointError(f"{path} holds {name!r}, which is not of an unfinished run")
        parts[part][tree_path] = array
    return UnfinishedRun(**parts)


def count_steps(path: Path) -> int:
    """Return how many steps the unfinished run in `path` has made; 0 for a file that cannot be read."""
    with contextlib.suppress(*UNREADABLE, KeyError, StopIteration), np.load(path) as stored:
        return len(stored[next(name for name in stored.files if name.startswith(METRICS))])
    return 0


def named_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Return the arrays of `tree` on the host, by path; keys of `jax.random` as their data."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    # In one transfer: a copy of each array would wait for the device.
    on_host = jax.device_get({jax.tree_util.keystr(path): _raw(leaf) for path, leaf in leaves})
    return {name: np.asarray(array) for name, array in on_host.items()}


def restore(arrays: Arrays, like: Tree, source: object) -> Tree:
    """Return the tree whose `named_arrays` are `arrays`, read from `source`.

    Raises:
        ValueError: If an array is missing, unexpected, or of another shape or type.
    """
    expected = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(like)}
    if expected != set(arrays):
        raise ValueError(f"{source} and the wanted tree differ in {sorted(expected ^ set(arrays))}")

    def load(path, leaf):
        name = jax.tree_util.keystr(path)
        array, wanted = arrays[name], jax.eval_shape(_raw, leaf)
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            raise ValueError(
                f"{name} in {source} is {array.dtype}{array.shape}, not {wanted.dtype}{wanted.shape}"
            )
        on_device = jax.numpy.asarray(array)
        return jax.random.wrap_key_data(on_device) if _is_key(leaf) else on_device

    return jax.tree_util.tree_map_with_path(load, like)


def _write(path: Path, arrays: Arrays, save: Callable[..., None]) -> Path:
    return write_atomically(path, lambda file: save(file, allow_pickle=False, **arrays))


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path) as stored:
            return dict(stored)
    # NumPy's own words suggest to allow pickles. A single array (.npy) is a TypeError.
    except UNREADABLE as error:
        raise DamagedCheckpointError(
            f"{path} cannot be read: it is damaged, or not a checkpoint (.npz) of simlab"
        ) from error


def _is_key(leaf) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf):
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
