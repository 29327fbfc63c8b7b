"""Short names for the fields that people sweep most.

| alias | field |
|---|---|
| `learning_rate` | `optimizer.learning_rate` |
| `clip_low`, `clip_high` | `objective.clip_low`, `objective.clip_high` |
| `infer_format` | format of activations and weights in the projections of the inference engine |
| `infer_mantissa_bits`, `infer_rounding` | the same sites: mantissa bits, rounding mode |
| `response_length` | `task.difficulty`, the difficulty whose longest response has this many tokens |
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from simlab.core.json_value import Json
from simlab.core.ranges import Range
from simlab.engines import EnginePair, Site
from simlab.sweeps.config_reader import locate_errors, number, read
from simlab.sweeps.own_records import SOURCE
from simlab.sweeps.plain_values import name_record, plain
from simlab.tasks import Task

Changes = dict[str, Json]
PROJECTION = "engines.infer.projection"
OPERANDS = ("activations", "weights")
MANTISSA_BITS = Range(0, 21)
LARGEST_DIFFICULTY = 256
PATHS = {
    "learning_rate": "optimizer.learning_rate",
    "clip_low": "objective.clip_low",
    "clip_high": "objective.clip_high",
}
"""Aliases of one field."""
OPERAND_ALIASES = {
    "infer_format": "format",
    "infer_mantissa_bits": "format.mantissa_bits",
    "infer_rounding": "rounding",
}
"""Aliases of a field of both operands."""
COLUMNS = {
    alias: tuple(
        ".".join((PROJECTION, name, *field.split(".")[:depth]))
        for name in OPERANDS
        for depth in range(field.count(".") + 2)
    )
    for alias, field in OPERAND_ALIASES.items()
} | {"response_length": ("task.difficulty",)}
"""Aliases with a column of their own, and the columns of the fields that they set."""


def check_named_once(table: Mapping[str, Json]) -> None:
    """Raise `ValueError` if `table` gives a field by its short name and by its path."""
    for name, path in PATHS.items():
        outer, inner = path.split(".")
        nested = table.get(outer)
        if name in table and (path in table or (isinstance(nested, Mapping) and inner in nested)):
            raise ValueError(f"{name} and {path} must not both be given: they name the same field.")


def field_of(path: str) -> Callable[[Mapping[str, Json], Json], Changes]:
    """Return an alias of one field."""
    return lambda _, value: {path: value}


def infer_format(table: Mapping[str, Json], value: Json) -> Changes:
    """Store both operands of the inference engine's projections in the format `value`."""
    field = OPERAND_ALIASES["infer_format"]
    return {f"{path}.{field}" if site.format is not None else path: value for path, site in _operands(table)}


def infer_mantissa_bits(table: Mapping[str, Json], value: Json) -> Changes:
    """Keep `value` mantissa bits of both operands; a float32 operand keeps its exponent range.

    Raises `ValueError` for a value that is not an integer from 0 to 21.
    """
    with locate_errors("infer_mantissa_bits"):
        bits = number(value, int)
        MANTISSA_BITS.check(bits)
    return _change_operands(table, OPERAND_ALIASES["infer_mantissa_bits"], bits)


def infer_rounding(table: Mapping[str, Json], value: Json) -> Changes:
    """Round both operands of the inference engine's projections by the mode `value`."""
    return _change_operands(table, OPERAND_ALIASES["infer_rounding"], value)


def _change_operands(table: Mapping[str, Json], field: str, value: Json) -> Changes:
    """Return `value` at a field of both operands; one without a format gets float32 first."""
    changes: Changes = {}
    for path, site in _operands(table):
        changes |= {path: "fp32"} if site.format is None else {}
        changes[f"{path}.{field}"] = value
    return changes


def response_length(table: Mapping[str, Json], value: Json) -> Changes:
    """Choose the difficulty whose longest response has `value` tokens.

    Raises `ValueError` naming the lengths that the task has.
    """
    with locate_errors("response_length"):
        wanted = number(value, int)
    if "task" not in table:
        raise ValueError("response_length needs a task. Name one, for example task = 'add'.")
    lengths = set()
    for difficulty in range(1, LARGEST_DIFFICULTY + 1):
        changed = _with_field(table["task"], "difficulty", difficulty)
        try:
            task = read(Task, changed, "task").record
        except ValueError:
            continue
        lengths.add(task.response_length)
        if task.response_length == wanted:
            return {"task.difficulty": difficulty}
    raise ValueError(f"response_length must be one of {_ranges(lengths)} for this task, got {wanted}.")


def _ranges(numbers: Iterable[int]) -> str:
    """Return integers as text, such as `2, 5 to 9`."""
    ordered = sorted(numbers)
    starts = [n for n in ordered if n - 1 not in ordered]
    ends = [n for n in ordered if n + 1 not in ordered]
    pairs = zip(starts, ends, strict=True)
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in pairs)


ALIASES: dict[str, Callable[[Mapping[str, Json], Json], Changes]] = {
    **{name: field_of(path) for name, path in PATHS.items()},
    "infer_format": infer_format,
    "infer_mantissa_bits": infer_mantissa_bits,
    "infer_rounding": infer_rounding,
    "response_length": response_length,
}
"""From a run in plain values and the alias's value to changes of its fields, in the order of application."""


def column_value(value: object) -> Json:
    """Return an alias's value for a column: an integer, the name of a record, or a table as text."""
    if dataclasses.is_dataclass(value):
        value = name_record(value)
    if isinstance(value, Mapping):
        return value["name"] if set(value) <= {"name", SOURCE.lstrip(".")} else str(plain(value))
    return value if isinstance(value, str) else number(value, int)


def _operands(table: Mapping[str, Json]) -> list[tuple[str, Site]]:
    """Return path and record of both operands' sites, as `table` has them."""
    pair = read(EnginePair, table["engines"], "engines").record
    projection = pair.infer.projection
    return [(f"{PROJECTION}.{name}", getattr(projection, name)) for name in OPERANDS]


def _with_field(value: Json, field: str, content: Json) -> dict[str, Json]:
    table = {"name": value} if isinstance(value, str) else dict(value)
    return {**table, field: content}
