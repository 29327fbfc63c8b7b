"""Trees of arrays on disk: one `.npz`, named by their place in the tree, written atomically."""

from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from simlab.core.atomic import write_atomically

Tree = TypeVar("Tree")


def save_tree(path: Path, tree: Any) -> Path:
    """Write the arrays of `tree` to `path`; keys of `jax.random` are kept as their data."""
    named = {
        jax.tree_util.keystr(place): _raw(leaf) for place, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    return write_atomically(path, lambda file: np.savez_compressed(file, allow_pickle=False, **named))


def load_tree(path: Path, like: Tree) -> Tree:
    """Return the tree in `path`, which must have the places, shapes and types of `like`.

    Raises `ValueError` naming a place that is missing, too many, or of another shape or type.
    """
    with np.load(path) as stored:
        arrays = dict(stored)
    expected = {jax.tree_util.keystr(place) for place, _ in jax.tree_util.tree_leaves_with_path(like)}
    if expected != set(arrays):
        raise ValueError(f"{path} and the wanted tree differ in {sorted(expected ^ set(arrays))}")

    def loaded(place, leaf):
        name = jax.tree_util.keystr(place)
        array, wanted = arrays[name], jax.eval_shape(_raw, leaf)
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            raise ValueError(
                f"{name} in {path} is {array.dtype}{array.shape}, not {wanted.dtype}{wanted.shape}"
            )
        return jax.random.wrap_key_data(array) if _is_key(leaf) else jax.numpy.asarray(array)

    return jax.tree_util.tree_map_with_path(loaded, like)


def _is_key(leaf) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf):
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf
