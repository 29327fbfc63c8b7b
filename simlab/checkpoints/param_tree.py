"""The parameters of the lab as named leaves."""

from typing import Any

import jax
import numpy as np

from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params, init_params

Place = tuple[str | int, ...]


def shapes_of(config: TransformerConfig) -> Params:
    """Return the tree of shapes and types of the parameters of `config`, none of them made."""
    return jax.eval_shape(lambda: init_params(jax.random.key(0), config))


def place_of(path: tuple) -> Place:
    """Return a path of `jax.tree_util` as names and numbers."""
    return tuple(part.idx if isinstance(part, jax.tree_util.SequenceKey) else part.key for part in path)


def leaves_of(tree: Params) -> dict[Place, Any]:
    """Return the leaves by place; of `shapes_of`, their shapes and types."""
    return {place_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Return an uninitialized float32 array that JAX on a CPU takes over without a copy."""
    raw = np.empty(4 * int(np.prod(shape)) + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + raw.size - 64].view(np.float32).reshape(shape)
