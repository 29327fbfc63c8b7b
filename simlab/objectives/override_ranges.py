"""Types of the numbers of an objective, with their ranges, which are checked before any compute."""

import typing
from typing import Annotated

from jax.core import Tracer

from simlab.core.catalog import shorten
from simlab.core.pytree import Scalar
from simlab.core.ranges import FRACTION, TINY, Range

NotNegative = Annotated[Scalar, Range(0.0)]
Positive = Annotated[Scalar, Range(TINY)]
Fraction = Annotated[Scalar, FRACTION]
AtLeastOne = Annotated[Scalar, Range(1.0)]
Number = Annotated[Scalar, Range()]
Bounds = Annotated[Scalar | tuple[Scalar, Scalar], Range(0.0)]
"""A largest number, or a pair (low, high)."""
Override = Scalar | tuple[Scalar, Scalar] | list[float] | str | None
"""A number or switch, a pair of numbers, or the name of a choice."""


def find_range(hint: object) -> tuple[Range | None, bool]:
    """Return the range in the type of a field, and whether the field takes a pair (low, high)."""
    options = (hint, *typing.get_args(hint))
    inner = [each for option in options for each in (option, *typing.get_args(option))]
    allowed = next((each for each in inner if isinstance(each, Range)), None)
    return allowed, any(typing.get_origin(each) is tuple for each in inner)


def check_range(name: str, value: Override, hint: object) -> None:
    """Check the value of an override against the type of the field that it replaces.

    Traced values, stacked values and fields without a range pass unseen.

    Raises:
        ValueError: For a value outside its range, with the value and what is allowed.
    """
    allowed_range, takes_pair = find_range(hint)
    if value is None or allowed_range is None:
        return
    numbers = value if isinstance(value, tuple | list) else (value,)
    allowed = f"{allowed_range}{', or a pair (low, high) of such with low <= high' if takes_pair else ''}"
    if len(numbers) > 1 and not (takes_pair and len(numbers) == 2):
        raise ValueError(f"{name} must be one number, {allowed}, got {shorten(value)}.")
    if any(isinstance(number, Tracer) or getattr(number, "ndim", 0) for number in numbers):
        return
    try:
        known = [float(number) for number in numbers]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a number, {allowed}, got {shorten(value)}.") from error
    # `not low <= x` also catches NaN.
    inside = all(allowed_range.low <= number <= allowed_range.high for number in known)
    if not inside or known != sorted(known):
        raise ValueError(f"{name} must be {allowed}, got {shorten(value)}.")
