"""Named random streams, so that adding a draw never changes another one."""

import zlib

import jax


def stream(key: jax.Array, name: str) -> jax.Array:
    """Return the key of the stream `name` below `key`: `fold_in(key, crc32(name))`.

    The id depends on the name alone, neither on the process nor on the order of the calls.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()))
