"""Records whose numbers are part of a program."""

from typing import TypeVar, cast

import jax
import numpy as np
from jaxtyping import PyTree

from simlab.core.pytree import pytree, static

Record = TypeVar("Record")


@pytree
class ConstantRecord:
    """A tree of known numbers, in place of which a program has their values.

    It has no leaves: programs of different numbers are different programs.
    """

    numbers: tuple[tuple[str, tuple[int, ...], bytes], ...] = static()
    tree: PyTree = static()

    @property
    def value(self) -> PyTree:
        """Return the tree, its numbers those of NumPy."""
        arrays = [np.frombuffer(data, dtype).reshape(shape) for dtype, shape, data in self.numbers]
        return self.tree.unflatten([array[()] for array in arrays])


def hold_constant(record: Record) -> Record:
    """Return a `ConstantRecord` in place of the record, for functions that call `release_constants`.

    A record without numbers is returned as it is.
    """
    leaves, tree = jax.tree.flatten(record)
    if not leaves:
        return record
    arrays = [np.asarray(leaf, jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)) for leaf in leaves]
    numbers = tuple((str(array.dtype), array.shape, array.tobytes()) for array in arrays)
    return cast(Record, ConstantRecord(numbers, tree))


def release_constants(record: Record) -> Record:
    """Return the record with the values of all constants in it."""
    return jax.tree.map(
        lambda node: node.value if isinstance(node, ConstantRecord) else node,
        record,
        is_leaf=lambda node: isinstance(node, ConstantRecord),
    )
