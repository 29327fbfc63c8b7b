"""Tables of probabilities as a real engine would compute them: a pair of engines as a `PolicyPair`."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from simlab.engines import Engine, find_engine, find_pair, linear, log_softmax
from simlab.theory.rounding_error import normalize_rows

WIDTH = 128
"""Width of the hidden state: a multiple of every block size in the catalog."""


def engine_rows(logits: Float[np.ndarray, "K V"], engine: Engine | str) -> Float[np.ndarray, "K V"]:
    """Return the probabilities `[K, V]` that an engine prints for logits `[K, V]`, V at most 128.

    The table is written as hidden states times an orthogonal projection times a head with orthonormal
    columns, whose product is the identity; so every linear site of the engine rounds, and the exact
    result is the table itself. Rows need not sum to one.

    Reference: hacking Eq. 44, 45; acrl Sec. 5.1.
    """
    if logits.shape[-1] > WIDTH:
        raise ValueError(f"at most {WIDTH} tokens, got {logits.shape[-1]}")
    projection, head = _factors(logits.shape[-1])
    hidden = jnp.asarray(logits @ (projection @ head).T, jnp.float32)
    resolved = find_engine(engine)
    return np.exp(
        np.asarray(_forward(hidden, jnp.asarray(projection), jnp.asarray(head), resolved), np.float64)
    )


@jax.jit
def _forward(hidden: jax.Array, projection: jax.Array, head: jax.Array, engine: Engine) -> jax.Array:
    middle = linear(hidden, projection, engine)
    return log_softmax(linear(middle, head, engine.lm_head), engine)


@cache
def _factors(vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an orthogonal `[D, D]` and a `[D, V]` with orthonormal columns, in float32."""
    rng = np.random.default_rng(0)
    projection = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0]
    head = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0][:, :vocabulary]
    return projection.astype(np.float32), head.astype(np.float32)


def pair_rows(
    logits: Float[np.ndarray, "K V"], name: str
) -> tuple[Float[np.ndarray, "K V"], Float[np.ndarray, "K V"]]:
    """Return the rows `[K, V]` that both engines of the pair `name` sample from: printed, normalized.

    Reference: hacking Eq. 5; lr Eq. 3; acrl Sec. 5.1.
    """
    pair = find_pair(name)
    return normalize_rows(engine_rows(logits, pair.train)), normalize_rows(engine_rows(logits, pair.infer))
