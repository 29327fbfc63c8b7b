"""Frozen records: what may be swept is a pytree leaf, what may not is static."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform

import jax

from simlab.core.trees import register_dataclass

Class = TypeVar("Class", bound=type)

# A Python number or a traced scalar: every numeric knob of an objective may be a sweep axis.
Scalar = float | jax.Array


@dataclass_transform(frozen_default=True)
def record(*, static: tuple[str, ...] = ()) -> Callable[[Class], Class]:
    """Class decorator: a frozen dataclass that is a pytree.

    Fields named in `static` (functions, categorical names) become part of the tree structure and must be
    hashable; every other field is a leaf or a subtree and may be traced.
    """

    def wrap(cls: Class) -> Class:
        frozen: Any = dataclass(frozen=True)(cls)
        frozen.static_fields = static
        data = [field.name for field in fields(frozen) if field.name not in static]
        return register_dataclass(frozen, data_fields=data, meta_fields=list(static))

    return wrap
