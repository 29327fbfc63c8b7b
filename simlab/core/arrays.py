"""Types of arrays in signatures; their shapes are those of jaxtyping, which the tests check at every call."""

from typing import TYPE_CHECKING

import jax
import numpy as np

if TYPE_CHECKING:
    AnyArray = jax.Array
else:
    AnyArray = jax.Array | np.ndarray
    """An array of JAX, or of NumPy, which the same operations accept: `Float[AnyArray, "B T"]`."""
