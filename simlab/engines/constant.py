"""Engines whose numbers are part of a compiled function, where those of other engines are its arguments.

XLA may fuse a function of constants otherwise than one of arguments, and contract other products and sums
into one operation. The two forms of `bf16/vllm-bf16` differ in last bits at full size. So the engine alone
decides its form, and runs with constants have keys of their own.
"""

from collections.abc import Hashable
from functools import cache
from typing import TypeVar

import jax
import numpy as np

from simlab.core.pytree import pytree, static
from simlab.engines.catalog import ENGINES
from simlab.engines.engine import Engine

Record = TypeVar("Record")


@pytree
class ConstantEngine:
    """An engine of the catalog without leaves: functions of different engines are different functions."""

    name: str = static()


def hold_constant(engine: Engine) -> Engine | ConstantEngine:
    """Return an engine of the catalog as a constant for `release_constants`, any other as it is.

    An engine belongs to the catalog by its numbers, not by how a config writes it. One without numbers has
    only one form.
    """
    name = _catalog().get(_describe(engine))
    return engine if name is None else ConstantEngine(name)


def release_constants(record: Record) -> Record:
    """Return a record with the engines in place of all constants in it."""
    return jax.tree.map(_release, record, is_leaf=lambda node: isinstance(node, ConstantEngine))


def _release(node: object) -> object:
    return ENGINES[node.name] if isinstance(node, ConstantEngine) else node


@cache
def _catalog() -> dict[Hashable, str]:
    # The first of equal engines.
    return {_describe(engine): name for name, engine in reversed(ENGINES.items()) if jax.tree.leaves(engine)}


def _describe(engine: Engine) -> Hashable:
    # By bytes: formats have a NaN, which equals nothing.
    leaves, tree = jax.tree.flatten(engine)
    arrays = [np.asarray(leaf) for leaf in leaves]
    # A Python number is read as the argument that it would be.
    arrays = [array.astype(jax.dtypes.canonicalize_dtype(array.dtype)) for array in arrays]
    return tree, tuple((str(array.dtype), array.shape, array.tobytes()) for array in arrays)
