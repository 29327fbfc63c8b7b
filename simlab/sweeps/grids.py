"""Grids of changes to a base config; grids multiply."""

import itertools
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simlab.core.catalog import lookup
from simlab.core.json_value import Json

Changes = Mapping[str, Json]  # dotted field -> plain value
SCALES = ("uniform", "log_uniform")


@dataclass(frozen=True)
class Point:
    """One point of a grid: its changes, and the name of its arm if it has one.

    `named` are the changes that the name stands for; labels add what else varies.
    """

    changes: Changes
    arm: str = ""
    named: tuple[str, ...] = ()

    @classmethod
    def of_arm(cls, changes: Changes, arm: str) -> "Point":
        """Return the point of an arm whose name stands for all changes."""
        return cls(changes, arm, tuple(changes) if arm else ())


@dataclass(frozen=True)
class Grid:
    """Points in order. `a * b` pairs every point of a with every point of b, b's running faster."""

    points: tuple[Point, ...]

    def __mul__(self, other: "Grid") -> "Grid":
        """Return the product; a field that both change is an error."""
        return Grid(tuple(_both(a, b) for a, b in itertools.product(self.points, other.points)))

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.points)


def grid(axes: Mapping[str, Sequence[Json]]) -> Grid:
    """Return all combinations of the axes, the last one fastest.

    Args:
        axes: a list of values for each field.

    Raises:
        ValueError: for an axis that is not a list of at least one value, or that repeats a value.

    Example:
        >>> len(grid({"objective": ["grpo", "gspo"], "seed": range(4)}))
        8
    """
    axes = {name: _distinct(name, _values(name, values)) for name, values in axes.items()}
    combinations = itertools.product(*axes.values())
    return Grid(tuple(Point(dict(zip(axes, values, strict=True))) for values in combinations))


def listed(points: Sequence[Changes] | Mapping[str, Json]) -> Grid:
    """Return the points that are written down.

    Args:
        points: a list of changes; or a table of named arms, `{"TIS": {"objective": "grpo+tis"}}`; or
            columns of equal length, read row by row.

    Raises:
        ValueError: for no points, and for columns of different lengths.

    Example:
        >>> len(listed({"seed": [0, 1], "prompts_per_step": [8, 16]}))
        2
    """
    if not points:
        raise ValueError(f"listed points must be at least one, got {points!r}.")
    if not isinstance(points, Mapping):
        return Grid(tuple(Point(dict(changes)) for changes in points))
    if all(isinstance(changes, Mapping) for changes in points.values()):
        return Grid(tuple(Point.of_arm(dict(changes), str(name)) for name, changes in points.items()))
    columns = {name: _values(name, values) for name, values in points.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"listed columns must be equally long; these have {lengths}")
    return Grid(
        tuple(Point(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))
    )


def sampled(count: int, seed: int, fields: Mapping[str, Json]) -> Grid:
    """Return random points.

    The draws of a field depend on `seed` and its name alone, and a larger `count` begins with the points of a
    smaller one.

    Args:
        count: number of points.
        seed: of the draws.
        fields: per field a list to choose from, or `{"log_uniform": [low, high]}`, or `uniform` likewise.

    Raises:
        ValueError: for a count below 1, an unknown scale, or a range that is empty.

    Example:
        >>> len(sampled(3, 0, {"optimizer.learning_rate": {"log_uniform": [1e-5, 1e-3]}}))
        3
    """
    for what, number, low in (("count", count, 1), ("seed", seed, 0)):
        if not isinstance(number, int) or isinstance(number, bool) or number < low:
            raise ValueError(f"{what} of a sampled grid must be an integer >= {low}, got {number!r}.")
    draws = {name: _draws(name, how, count, seed) for name, how in fields.items()}
    return Grid(tuple(Point({name: column[i] for name, column in draws.items()}) for i in range(count)))


def as_grid(over: Grid | Mapping[str, Json] | None) -> Grid:
    """Return a grid from itself, from a table of axes, or from None (one point that changes nothing)."""
    if over is None:
        return Grid((Point({}),))
    if isinstance(over, Grid):
        return over
    if isinstance(over, Mapping):
        return grid(over)
    raise ValueError(f"over must be a table of axes, grid(...), listed(...) or sampled(...), got {over!r}.")


def _draws(name: str, how: Json, count: int, seed: int) -> list[Json]:
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if not isinstance(how, Mapping):
        choices = _values(name, how)
        return [choices[i] for i in generator.integers(len(choices), size=count)]
    scale, low, high = _range(name, how)
    uniform = generator.random(count)
    if scale == "uniform":
        return [float(low + (high - low) * u) for u in uniform]
    return [float(low * math.exp(u * math.log(high / low))) for u in uniform]


def _range(name: str, how: Mapping[str, Json]) -> tuple[str, float, float]:
    for scale in how:
        lookup(dict.fromkeys(SCALES), scale, f"scale of {name}")
    if len(how) != 1:
        raise ValueError(f"{name} must be a list or one of {' and '.join(SCALES)}, got {how!r}.")
    ((scale, bounds),) = how.items()
    is_pair = isinstance(bounds, Sequence) and len(bounds) == 2 and all(map(_is_finite, bounds))
    if not is_pair or not bounds[0] < bounds[1] or (scale == "log_uniform" and bounds[0] <= 0):
        raise ValueError(
            f"{name}: {scale} must be [low, high] with low < high, above 0 for log_uniform, got {bounds!r}."
        )
    return scale, *bounds


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _values(name: str, values: Json) -> list[Json]:
    is_list = hasattr(values, "__iter__") and not isinstance(values, str | Mapping)
    listed = list(values) if is_list else []
    if not listed:
        raise ValueError(f"{name} must be a list of at least one value, got {values!r}.")
    return listed


def _distinct(name: str, values: list[Json]) -> list[Json]:
    """Return `values`; a repeated one would be the same run, which is computed once."""
    # Records are left out: the text of a large array is abridged.
    written = Counter(repr(value) for value in values if isinstance(value, int | float | str | Mapping))
    for text, count in written.most_common(1):
        if count > 1:
            times = "twice" if count == 2 else f"{count} times"
            raise ValueError(f"{name} must have each value once, got {text} {times}.")
    return values


def _both(a: Point, b: Point) -> Point:
    if twice := sorted(set(a.changes) & set(b.changes)):
        raise ValueError(
            f"{', '.join(twice)} must be in one part of the grid ([arms], [sampled] or [over]), got two."
        )
    arm = ", ".join(name for name in (a.arm, b.arm) if name)
    return Point({**a.changes, **b.changes}, arm, (*a.named, *b.named))
