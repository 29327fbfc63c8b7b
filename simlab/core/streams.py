"""Named random streams, so that adding a draw never changes another one."""

import math
import zlib
from collections.abc import Callable

import jax


def stream(key: jax.Array, name: str) -> jax.Array:
    """Return the key of the stream `name` below `key`: `fold_in(key, crc32(name))`.

    The id depends on the name alone, neither on the process nor on the order of the calls.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def draw_array(
    draw: Callable[..., jax.Array], key: jax.Array, shape: tuple[int, ...], *dtype: type
) -> jax.Array:
    """Return `draw(key, shape, *dtype)` of a function of `jax.random`, drawn flat: it compiles faster.

    The bits are the same: an element's random words depend on its row-major index alone.
    """
    return draw(key, (math.prod(shape),), *dtype).reshape(shape)
