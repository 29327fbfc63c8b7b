"""Records: frozen dataclasses that are pytrees, with static or traced visible at the field."""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform, overload

import jax
import numpy as np
from jax import Array
from jax.tree_util import GetAttrKey
from jaxtyping import PyTree

Class = TypeVar("Class", bound=type)
Value = TypeVar("Value")

# A number of a record: a Python or NumPy scalar, a 0-d array, or a tracer. Any of them may be a sweep axis.
Scalar = float | np.floating | Array
Integer = int | np.integer | Array
Flag = bool | np.bool_ | Array


@overload
def static() -> PyTree: ...
@overload
def static(*, default: Value) -> Value: ...


def static(*, default: object = MISSING) -> object:
    """Declare a field of a `pytree` class as part of the tree structure.

    The value must be hashable. It shapes the compiled function and cannot be traced.
    """
    options: dict[str, Any] = {"default": default, "metadata": {"static": True}}
    return field(**options)


def static_names(record: PyTree) -> tuple[str, ...]:
    """Return the names of the static fields of a record or its class."""
    return tuple(each.name for each in fields(record) if each.metadata.get("static"))


@overload
def pytree(cls: Class) -> Class: ...
@overload
def pytree(*, kw_only: bool = False) -> Callable[[Class], Class]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field, static))
def pytree(cls: Class | None = None, *, kw_only: bool = False) -> Class | Callable[[Class], Class]:
    """Make a class a frozen dataclass and a pytree.

    Fields declared with `static` are part of the tree structure. All other fields are leaves or subtrees.
    JAX rebuilds a record without `__init__`, because leaves may be placeholders such as `jax.vmap` axes.

    The class is part of the tree structure too. `register_dataclass` of JAX 0.10 compares static fields
    only, so two classes with equally many fields are equal as trees. When their hashes collide, a jitted
    function that has seen one class runs the compiled function of that class for the other (see
    docs/jax_jit_cache.md).

    Args:
        cls: The class to decorate; omitted when options are given.
        kw_only: Whether `__init__` takes the fields by keyword only.

    Returns:
        The class, or a decorator if `cls` is omitted.

    Example:
        >>> @pytree
        ... class Clip:
        ...     low: Scalar
        ...     level: str = static(default="token")
    """
    if cls is None:
        return lambda cls: register_class(dataclass(frozen=True, kw_only=kw_only)(cls))
    return register_class(dataclass(frozen=True)(cls))


REGISTERED: set[type] = set()
"""Every class that `pytree` has made."""


def register_class(cls: Class) -> Class:
    """Register a dataclass as a pytree, unless it is one; return it."""
    if cls in REGISTERED:
        return cls
    REGISTERED.add(cls)
    meta = static_names(cls)
    data = tuple(each.name for each in fields(cls) if each.name not in meta)

    def flatten(record: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(record, name) for name in data], (cls, *(getattr(record, name) for name in meta))

    def flatten_with_keys(record: Any) -> tuple[list[Any], tuple[Any, ...]]:
        leaves, structure = flatten(record)
        return [(GetAttrKey(name), leaf) for name, leaf in zip(data, leaves, strict=True)], structure

    def unflatten(structure: tuple[Any, ...], leaves: Iterable[Any]) -> Any:
        record = object.__new__(cls)
        for name, value in zip((*data, *meta), (*leaves, *structure[1:]), strict=True):
            object.__setattr__(record, name, value)
        return record

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
