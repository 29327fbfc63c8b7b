"""Rounding modes and overflow rules, as records of numbers and by name."""

import numpy as np

from simlab.core.pytree import Flag, Scalar, pytree


@pytree
class Rounding:
    """A deterministic rounding mode as numbers, which may be traced and stacked.

    A magnitude at fraction f in (0, 1) of the way between two neighbors goes to the larger one if
    f + carry > 1, and also if f + carry = 1 unless `ties_even` asks for an even last bit.
    `carry_positive` and `carry_negative` (float32) are 0 (truncate), 1/2 (nearest) or 1 (away from zero).

    Reference: IEEE 754-2019 Sec. 4.3.
    """

    carry_positive: Scalar
    carry_negative: Scalar
    ties_even: Flag

    @staticmethod
    def declare(carry_positive: float, carry_negative: float, ties_even: bool = False) -> "Rounding":
        """Return a checked rounding mode.

        Raises:
            ValueError: For other carries than those of IEEE 754, or `ties_even` without carries of 1/2.
        """
        carries = (carry_positive, carry_negative)
        if carries not in ((0, 0), (0.5, 0.5), (1, 1), (0, 1), (1, 0)):
            raise ValueError(f"carries {carries}; allowed: both 0, both 0.5, both 1, (0, 1), (1, 0)")
        if ties_even and carry_positive != 0.5:
            raise ValueError(f"ties_even needs both carries at 0.5, not {carries}")
        return Rounding(np.float32(carry_positive), np.float32(carry_negative), np.bool_(ties_even))


@pytree
class StochasticRounding:
    """Rounding up in magnitude with a probability equal to the fraction f; needs a key.

    With n the number of float32 fraction bits that the format drops, f is rounded to n bits (to even), which
    changes it only for subnormal results, and the magnitude goes up if 2^n f + r >= 2^n, with r the upper n
    bits of the element's random word. The expectation is exact for normal results, and off by at most
    2^-(n+1) of a quantum for subnormal ones.
    """


ROUNDINGS: dict[str, Rounding | StochasticRounding] = {
    "nearest_even": Rounding.declare(0.5, 0.5, ties_even=True),
    "nearest_away": Rounding.declare(0.5, 0.5),
    "toward_zero": Rounding.declare(0.0, 0.0),
    "up": Rounding.declare(1.0, 0.0),
    "down": Rounding.declare(0.0, 1.0),
    "stochastic": StochasticRounding(),
}

# "saturate": what is beyond the range, infinities too, becomes the last finite value; NaN stays NaN.
# "format": the format's own infinity and NaN, or saturation where it has none.
OVERFLOWS: dict[str, Flag] = {"saturate": np.bool_(True), "format": np.bool_(False)}
