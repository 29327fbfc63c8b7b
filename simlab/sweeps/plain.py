"""Plain values (names, numbers, tables of both) read into the lab's records, by the type of the field.

Nothing here knows the fields of a recipe: a new field of a known type, or of any dataclass, is read as it is.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from simlab.core.catalog import lookup, shown
from simlab.engines import ENGINES, Engine, EnginePair, Site, find_pair
from simlab.formats import FORMATS, ROUNDINGS, SCALINGS, Format, Rounding, Scaling
from simlab.formats.format import with_float32_range
from simlab.models.config import MODELS, TransformerConfig
from simlab.objectives import Objective, named, override_names, with_overrides
from simlab.sweeps.ranges import check_range
from simlab.tasks import TASKS, Task
from simlab.training.schedules import SCHEDULES, Schedule

Plain = Any  # None, bool, int, float, str, and lists and dicts of them
Read = tuple[Any, Plain]  # the record, and the canonical plain value that it stands for

# Types of which a plain string names a record, and types of which it names a class.
RECORDS: dict[Any, Callable[[str], Any]] = {
    EnginePair: find_pair,
    Engine: lambda name: lookup(ENGINES, name, "engine"),
    TransformerConfig: lambda name: lookup(MODELS, name, "model"),
    Format: lambda name: lookup(FORMATS, name, "format"),
    Rounding: lambda name: lookup(ROUNDINGS, name, "rounding"),
    Scaling: lambda name: lookup(SCALINGS, name, "scaling"),
    Site: Site.of,
}
CLASSES: dict[Any, tuple[Mapping[str, type], str]] = {
    Task: (TASKS, "task"),
    Schedule: (SCHEDULES, "schedule"),
}


def read(hint: Any, value: Plain, where: str, present: Any = None) -> Read:
    """Return (record, canonical plain value) of `value` for a field of type `hint`.

    `present` is what the field holds already: a table changes it, and a number takes its type.
    Raises `ValueError` naming the field `where`, the value and what is allowed.
    """
    options = _options(hint)
    if value is None:
        if type(None) in options or hint is Any:
            return None, None
        raise ValueError(f"{where}: a value is needed, not None")
    for option in options:
        if option is Objective:
            return _objective(value, where)
        if option in RECORDS:
            return _named_record(option, value, where, present)
        if option in CLASSES:
            return _named_class(*CLASSES[option], value, where, present)
        if dataclasses.is_dataclass(option):
            return _record(option, value, where, present)
        if typing.get_origin(option) in (Mapping, dict) or option in (Mapping, dict):
            table = _table(value, where)
            return _same({str(name): number(table[name], f"{where}.{name}", 0.0) for name in sorted(table)})
        if typing.get_origin(option) is tuple and isinstance(value, tuple | list):
            numbers = [_scalar(typing.get_args(option), part, where, present) for part in value]
            return tuple(numbers), numbers
    found = _scalar(options, value, where, present)
    return found, plain(found)


def read_fields(cls: type, values: Mapping[str, Plain], where: str, present: Any = None) -> Read:
    """Return (keyword arguments, canonical table) of the dataclass `cls`, defaults filled in."""
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    hints = typing.get_type_hints(cls)
    for name in values:
        _known(fields, name, where)
    records, canonical = {}, {}
    for name, field in fields.items():
        start = getattr(present, name) if present is not None else _default(field)
        if name in values:
            records[name], canonical[name] = read(hints[name], values[name], _join(where, name), start)
        elif start is dataclasses.MISSING:
            raise ValueError(f"{_join(where, name)}: a value is needed")
        else:
            records[name], canonical[name] = start, plain(start)
    return records, canonical


def plain(record: Any) -> Plain:
    """Return a record as plain values: its fields, and its name where a class has one."""
    if dataclasses.is_dataclass(record):
        table = {field.name: plain(getattr(record, field.name)) for field in dataclasses.fields(record)}
        names = [
            name for catalog, _ in CLASSES.values() for name, cls in catalog.items() if cls is type(record)
        ]
        return {"name": names[0]} | table if names else table
    if isinstance(record, Mapping):
        return {str(name): plain(value) for name, value in sorted(record.items())}
    if isinstance(record, tuple | list):
        return [plain(value) for value in record]
    if record is None or isinstance(record, str | bool | np.bool_):
        return bool(record) if isinstance(record, np.bool_) else record
    if isinstance(record, int | np.integer):
        return int(record)
    return shortest(float(record))


def shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32: 0.1 and float32(0.1) are one number."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))


def number(value: Plain, where: str, present: Any) -> Plain:
    """Return `value` as a number of the type of `present`: a float, an integer, or a bool.

    1 and 1.0 are equal where a float is meant, and 2.0 is 2 where an integer is. Raises `ValueError`.
    """
    if isinstance(present, bool | np.bool_):
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{where}: bad value {shown(value)}; allowed: true, false")
        return bool(value)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"{where}: bad value {shown(value)}; allowed: a number")
    if isinstance(present, int | np.integer):
        if value != value or value in (np.inf, -np.inf) or int(value) != value:
            raise ValueError(f"{where}: bad value {shown(value)}; allowed: an integer")
        found: int | float = int(value)
    else:
        found = shortest(_as_float(value))
    check_range(where, found)
    return found


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return math.inf if value > 0 else -math.inf


def _scalar(options: tuple, value: Plain, where: str, present: Any) -> Plain:
    if str in options and (isinstance(value, str) or options == (str,)):
        if not isinstance(value, str):
            raise ValueError(f"{where}: bad value {shown(value)}; allowed: a name")
        return value
    for kind, like in ((bool, False), (int, 0), (float, 0.0)):
        if kind in options:
            found = number(value, where, like)
            # The lab's own records hold numbers of a fixed type.
            return type(present)(found) if isinstance(present, np.generic) else found
    if present is None or present is dataclasses.MISSING:
        present = 0.0
    if isinstance(present, str):
        return _scalar((str,), value, where, present)
    return number(value, where, present)


def _objective(value: Plain, where: str) -> Read:
    name, changes = _name_and_changes(value, where, None)
    objective, canonical = _naming(where, lambda: named(name)), {}
    for override in sorted(changes):
        _known(override_names(objective), override, where)
        given = changes[override]
        if isinstance(given, tuple | list):
            found = tuple(number(part, f"{where}.{override}", 0.0) for part in given)
        else:
            found = given if isinstance(given, str | bool) else number(given, f"{where}.{override}", 0.0)
        change = partial(with_overrides, objective, name, **{override: found})
        objective = _naming(where, change)
        canonical[override] = list(found) if isinstance(found, tuple) else found
    return objective, {"name": name} | canonical


def _named_record(kind: Any, value: Plain, where: str, present: Any) -> Read:
    name, changes = _name_and_changes(value, where, present)
    if name is None:
        return _changed(present, changes, where)
    record, canonical = _changed(_naming(where, lambda: RECORDS[kind](name)), changes, where)
    return record, {"name": name} | canonical


def _changed(record: Any, changes: Mapping[str, Plain], where: str) -> Read:
    """Return `record` with `changes`, and those of them that change something."""
    hints = typing.get_type_hints(type(record))
    found, canonical = {}, {}
    for field in sorted(changes):
        _known([field.name for field in dataclasses.fields(record)], field, where)
        start, value, here = getattr(record, field), changes[field], _join(where, field)
        partly = dataclasses.is_dataclass(start) and isinstance(value, Mapping) and "name" not in value
        found[field], said = (
            _changed(start, value, here) if partly else read(hints[field], value, here, start)
        )
        # As text, because NaN differs from itself.
        if repr(plain(found[field])) != repr(plain(start)):
            canonical[field] = said
    changed = _naming(where, lambda: dataclasses.replace(record, **found)) if found else record
    # A narrower float32 has a smaller largest number; scaled formats keep theirs.
    narrowed = (
        isinstance(changed, Format)
        and "mantissa_bits" in found
        and not {"max_finite", "min_finite"} & set(found)
    )
    return (with_float32_range(changed) if narrowed else changed), canonical


def _named_class(catalog: Mapping[str, type], word: str, value: Plain, where: str, present: Any) -> Read:
    name, changes = _name_and_changes(value, where, present)
    cls = type(present) if name is None else _naming(where, lambda: lookup(catalog, name, word))
    found, canonical = read_fields(cls, changes, where, present if name is None else None)
    name = name or plain(present)["name"]
    return _naming(where, lambda: cls(**found)), {"name": name} | canonical


def _record(cls: Any, value: Plain, where: str, present: Any) -> Read:
    start = present if isinstance(present, cls) else None
    found, canonical = read_fields(cls, _table(value, where), where, start)
    return _naming(where, lambda: cls(**found)), canonical


def _name_and_changes(value: Plain, where: str, present: Any) -> tuple[Any, dict[str, Plain]]:
    """Split `"grpo"` or `{"name": "grpo", "clip_low": 0.1}`; a table without a name changes what is there."""
    if isinstance(value, str):
        return value, {}
    table = dict(_table(value, where))
    name = table.pop("name", None)
    if name is None and (present is None or present is dataclasses.MISSING):
        raise ValueError(f"{where}: a name is needed, in {shown(dict(value))}")
    return name, table


def _table(value: Plain, where: str) -> Mapping[str, Plain]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: bad value {shown(value)}; allowed: a name or a table of fields")
    return value


def _naming(where: str, make: Callable[[], Any]) -> Any:
    """Return `make()`; its complaint gets the name of the field."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error


def _known(names: Any, name: str, where: str) -> None:
    lookup(dict.fromkeys(names), name, f"field of {where or 'the run'}")


def _default(field: dataclasses.Field) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default


def _options(hint: Any) -> tuple:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return typing.get_args(hint)
    return (hint,)


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _same(value: Plain) -> Read:
    return value, value
