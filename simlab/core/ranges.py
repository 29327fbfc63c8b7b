"""Ranges of numbers, declared at the field: `Annotated[Scalar, Range(0.0, 1.0)]`."""

import math
from dataclasses import dataclass

from simlab.core.catalog import shorten

TINY = 2.0**-126
HUGE = float(2.0**127)


@dataclass(frozen=True)
class Range:
    """The smallest and the largest value that a field of a record may have; NaN is in no range."""

    low: float = -math.inf
    high: float = math.inf

    def check(self, value: float, name: str = "") -> None:
        """Check that a value is in the range; its `name` begins the error.

        Raises:
            ValueError: For any other value, with the allowed ones.
        """
        # `not low <= x` also catches NaN.
        if not self.low <= value <= self.high:
            unbounded = (self.high if value > 0 else -self.low) >= HUGE
            allowed = "finite in float32" if math.isinf(value) and unbounded else self
            raise ValueError(f"{name} must be {allowed}, got {shorten(value)}.".lstrip())

    def __str__(self) -> str:
        """Return the allowed values in words."""
        low = "above 0" if self.low == TINY else f"at least {_text(self.low)}"
        parts = [low] if self.low > -HUGE else []
        parts += [f"at most {_text(self.high)}"] if self.high < HUGE else []
        return " and ".join(parts) or "a number"


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


COUNT = Range(1, 1_000_000)
STEPS = Range(1, 10_000_000)
SEED = Range(0, 2**31 - 1)
FRACTION = Range(0.0, 1.0)
NOT_NEGATIVE = Range(0.0, HUGE)
POSITIVE = Range(TINY, HUGE)
"""Ranges that several records share."""
