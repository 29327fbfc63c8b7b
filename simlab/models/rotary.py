"""Rotary position embedding, in the convention of Hugging Face: the halves of a head are rotated."""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from simlab.engines import Engine, store
from simlab.engines.accumulate import float32_dot
from simlab.engines.materialize_once import materialize_once


def rotation_table(
    length: int, head_dim: int, theta: float
) -> tuple[Float[np.ndarray, "T D"], Float[np.ndarray, "T D"]]:
    """Return cosines and sines of positions 0 to length - 1, float32 `[length, head_dim]` each.

    The angle of position p in component i is p theta^(-2 (i mod D/2) / D), D = `head_dim`.

    Reference: RoFormer arXiv 2104.09864 Sec. 3.2; Qwen3RotaryEmbedding of transformers.
    """
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    angles = np.arange(length)[:, None] * np.tile(frequencies, 2)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(
    x: Float[Array, "*B T H D"], cos: Float[Array, "*C T D"], sin: Float[Array, "*C T D"], engine: Engine
) -> Float[Array, "*B T H D"]:
    """Rotate heads x [..., T, H, head_dim] by the angles of their positions, cos and sin [..., T, head_dim].

    Products and sums are rounded to `engine.elementwise`, as separate kernels do.

    Reference: apply_rotary_pos_emb of transformers.
    """
    across = (1,) * (x.ndim - 1 - cos.ndim)
    cos, sin = (table.reshape(*across, *table.shape[:-1], 1, table.shape[-1]) for table in (cos, sin))
    x = materialize_once(x, engine.elementwise)
    turned = lax.platform_dependent(x, cuda=_turn_halves, default=_turn_by_product)
    return store(
        store(x * cos, engine.elementwise) + store(turned * sin, engine.elementwise), engine.elementwise
    )


def _turn_halves(x: Array) -> Array:
    """Return (-second, first) for the halves (first, second) of x [..., head_dim]."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([-second, first], axis=-1)


def _turn_by_product(x: Array) -> Array:
    """Return what `_turn_halves` does, as a product with a signed permutation.

    It is exact in any order of summation. x is computed once for it, where XLA's CPU compiler would compute x
    again for each half of a concatenation. On a GPU it would be a kernel of its own.
    """
    half = np.eye(x.shape[-1] // 2, dtype=np.float32)
    zero = np.zeros_like(half)
    return float32_dot(x, jnp.asarray(np.block([[zero, half], [-half, zero]])))
