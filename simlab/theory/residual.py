"""The result of an exact check."""

from dataclasses import dataclass

import numpy as np

EXACT = 1e-12
"""Largest relative residual of an identity in float64."""
SINGLE = 2e-6
"""The same for what runs through the objectives, which are float32."""


@dataclass(frozen=True)
class Residual:
    """The outcome of one check.

    residual: what must vanish, relative to the size of its terms (0 for a bound that is kept, else the
    excess). tightness: measured over bound, or None. holds: as printed. note: the numbers.
    """

    residual: float
    holds: bool | np.bool_
    note: str
    tightness: float | None = None

    @classmethod
    def of_bound(cls, tightness: float, note: str) -> "Residual":
        """Return the outcome of a bound, from the largest measured value over the bound."""
        return cls(max(0.0, tightness - 1), tightness <= 1, note, tightness)
