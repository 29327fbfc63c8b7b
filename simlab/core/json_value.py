"""The type of values that JSON can hold."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import PyTree

    Json = PyTree[None | bool | int | float | str]
else:
    # jaxtyping imports JAX, which the readers of logs must not need.
    Json = object
