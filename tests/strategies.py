"""Hypothesis strategies that several packages share."""

import numpy as np
from hypothesis import strategies as st


def float32_bit_patterns() -> st.SearchStrategy[np.float32]:
    """Any float32 at all, NaN payloads, infinities, zeros and subnormals included."""
    return st.integers(0, 2**32 - 1).map(lambda bits: np.uint32(bits).view(np.float32))


def finite_float32(magnitude: float = 3.0e38) -> st.SearchStrategy[float]:
    """Finite float32 values up to `magnitude`, subnormals included."""
    return st.floats(-magnitude, magnitude, width=32, allow_nan=False, allow_infinity=False)
