"""The parameter tree as named leaves."""

import jax
import numpy as np
from jaxtyping import Float, PyTree

from simlab.models.parameters import Params

LeafPath = tuple[str | int, ...]


def leaf_path(path: tuple) -> LeafPath:
    """Return a path of `jax.tree_util` as names and numbers."""
    return tuple(part.idx if isinstance(part, jax.tree_util.SequenceKey) else part.key for part in path)


def leaves_of(tree: Params) -> dict[LeafPath, PyTree]:
    """Return the leaves by path."""
    return {leaf_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def allocate_aligned(shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
    """Return an uninitialized float32 array, aligned so that JAX on CPU does not copy it."""
    raw = np.empty(4 * int(np.prod(shape)) + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + raw.size - 64].view(np.float32).reshape(shape)
