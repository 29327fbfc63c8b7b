"""Read plain values (names, numbers, tables of both) into records: cattrs with a hook per kind of type.

No field of a recipe is named here: a new field of a known type, or of any dataclass, is read as it is,
and its range stands in its annotation.
"""

import contextlib
import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import numpy as np
from cattrs import Converter

from simlab.core.catalog import lookup, shorten
from simlab.core.json_value import Json
from simlab.core.plugins import references
from simlab.core.pytree import REGISTERED
from simlab.core.ranges import Range
from simlab.engines import ENGINES, Engine, EnginePair, Site, find_pair
from simlab.formats import FORMATS, ROUNDINGS, SCALINGS, Format, Rounding, Scaling, StochasticRounding
from simlab.formats.format import with_float32_range
from simlab.models.config import MODELS, TransformerConfig
from simlab.objectives import (
    OBJECTIVE_MODIFIERS,
    OBJECTIVES,
    Objective,
    get_objective,
    override_names,
    with_modifiers,
    with_overrides,
)
from simlab.objectives.objective import CHOICES, SWITCHES
from simlab.sweeps.own_records import describe_own, find_reference, load_own
from simlab.sweeps.plain_values import CLASSES, name_record, plain, shortest
from simlab.sweeps.verl_names import find_fields
from simlab.training.schedules import Schedule

Table = Mapping[str, Json]
Record = TypeVar("Record")
Entry = Callable[[Mapping[str, object], str, str], object]
"""Find the entry of a catalog by its name; the last argument is the word for an entry in errors."""


INNER_FIELD = re.compile(r"([a-z]\w*(?:\.\w+)*) (?=must )")


class Read(NamedTuple, Generic[Record]):
    """A record, and the canonical plain value that it stands for."""

    record: Record
    plain: Json


class FieldError(ValueError):
    """A value that a field cannot have, with the dotted path of the field."""

    def __init__(self, path: str, text: str):
        """Join path and text, which begins with `must` or is another record's complaint."""
        super().__init__(f"{path}{' ' if text.startswith('must ') else ': '}{text}" if path else text)
        self.path, self.text = path, text

    def __reduce__(self) -> tuple[type["FieldError"], tuple[str, str]]:
        """Pickle by its arguments: a process pool sends errors to its parent."""
        return FieldError, (self.path, self.text)


@contextlib.contextmanager
def locate_errors(path: str) -> Iterator[None]:
    """Name the field `path` in errors that are raised inside."""
    try:
        yield
    except FieldError as error:
        raise FieldError(".".join(filter(None, (path, error.path))), error.text) from error.__cause__
    except (ValueError, TypeError, OverflowError) as error:
        inner = INNER_FIELD.match(str(error))  # `clip_high must be ...`, of a record in the field
        name, text = (inner[1], str(error)[inner.end() :]) if inner else ("", str(error))
        raise FieldError(".".join(filter(None, (path, name))), text) from error


def _pair(name: str, entry: Entry) -> object:
    train, slash, infer = name.partition("/")
    if slash and references(name):
        return EnginePair(_engine(train, entry), _engine(infer, entry))
    return entry({}, name, "engine pair") if references(name) else find_pair(name)


def _engine(name: str, entry: Entry) -> Engine:
    engine = entry(ENGINES, name, "engine")
    if not isinstance(engine, Engine):
        raise ValueError(f"must be an engine, got {shorten(name)}, which is of type {type(engine).__name__}.")
    return engine


def _objective(name: str, entry: Entry) -> Objective:
    base, *modifiers = name.split("+")
    return with_modifiers(typing.cast("Objective", entry(OBJECTIVES, base, "objective")), modifiers, name)


def _site(name: str, entry: Entry) -> object:
    quantization = entry(FORMATS, name, "format")
    return Site.of(quantization) if isinstance(quantization, Format) else quantization


def _entry_of(catalog: Mapping[str, object], word: str) -> Callable[[str, Entry], object]:
    return lambda name, entry: entry(catalog, name, word)


# Types of which a name means a record; those of `CLASSES` are named by their class.
RECORDS: dict[type, tuple[str, Callable[[str, Entry], object]]] = {
    Objective: ("an objective", _objective),
    EnginePair: ("an engine pair such as 'f32/bf16'", _pair),
    Engine: ("an engine", _entry_of(ENGINES, "engine")),
    TransformerConfig: ("a model", _entry_of(MODELS, "model")),
    Format: ("a format", _entry_of(FORMATS, "format")),
    Rounding: ("a rounding", _entry_of(ROUNDINGS, "rounding")),
    Scaling: ("a scaling", _entry_of(SCALINGS, "scaling")),
    Site: ("a format or a site", _site),
}
ALTERNATIVES: dict[type, tuple[type, ...]] = {Rounding: (Rounding, StochasticRounding)}
GIVEN: dict[type, tuple[type, ...]] = {Site: (Site, Format)}
"""Kinds of record that may be given for a field of a type, besides those of that type."""


def read(hint: type[Record], value: Json, path: str) -> Read[Record]:
    """Return the record and the canonical form of `value` for a field `path` of type `hint`.

    Raises `ValueError` naming the field, the value and what is allowed.
    """
    if value is None and type(None) in _options(hint):
        return Read(typing.cast("Record", None), None)
    with locate_errors(path):
        structured = CONVERTER.structure(value, hint)
    return structured if isinstance(structured, Read) else Read(structured, plain(structured))


def paths_below(hint: object, above: str) -> Iterator[str]:
    """Yield the dotted path of every field of the records below `above`."""
    options = (hint, *typing.get_args(hint))
    bases = [option for option in options if isinstance(option, type) and option in CLASSES]
    for option in (*options, *(cls for base in bases for cls in CLASSES[base][0].values())):
        if dataclasses.is_dataclass(option):
            for name, inner in typing.get_type_hints(option).items():
                yield f"{above}.{name}"
                yield from paths_below(inner, f"{above}.{name}")


def _check_field(hints: Mapping[str, object], name: str, fields: Mapping[str, object]) -> None:
    """Raise `ValueError` for an unknown field, naming a similar one of the records below."""
    _check_verl_name(fields, name, "field")
    if name not in fields and not difflib.get_close_matches(name, fields):
        paths = [path for field in fields for path in paths_below(hints[field], field)]
        below = {path.rpartition(".")[2]: path for path in reversed(paths)}
        if close := difflib.get_close_matches(name, below, n=1):
            raise ValueError(f"unknown field {name!r}; did you mean {below[close[0]]!r}?")
    lookup(fields, name, "field")


def _check_verl_name(fields: Iterable[str], name: str, kind: str) -> None:
    """Raise `ValueError` for verl's name of one of `fields`."""
    ours = [field.rpartition(".")[2] for field in find_fields(name)]
    if name not in fields and ours and set(ours) <= set(fields):
        raise ValueError(f"unknown {kind} {name!r}; did you mean {' and '.join(map(repr, ours))}?")


def read_fields(cls: type[Record], values: Table, present: Record | None = None) -> Read[Record]:
    """Return a record of the dataclass `cls`, and its canonical table.

    Fields that `values` leaves out are those of the record `present`, or the defaults.
    """
    fields = {field.name: field for field in dataclasses.fields(typing.cast("Any", cls)) if field.init}
    hints = typing.get_type_hints(cls, include_extras=True)
    for name in values:
        _check_field(hints, name, fields)
    records, canonical = {}, {}
    for name, field in fields.items():
        start = getattr(present, name) if present is not None else default_of(field)
        if name not in values and start is dataclasses.MISSING:
            raise FieldError(name, "must have a value, got none.")
        if name in values:
            reading = _read_over(start, hints[name], values[name], name)
        else:
            reading = Read(start, {} if type(start) in RECORDS else plain(start))
        records[name], canonical[name] = reading
    return Read(cls(**records), canonical)


def _read_over(start: object, hint: type, value: Json, path: str) -> Read:
    """Read a field that holds `start` already, which a table without a name changes."""
    if not _is_change(start, value) or type(start) in RECORDS:
        return _read_change(start, hint, value, path)
    with locate_errors(path):
        fields = read_fields(type(start), value, start)
        name = {"name": plain(start)["name"]} if isinstance(start, tuple(CLASSES)) else {}
        return Read(fields.record, name | fields.plain)


def _read_change(start: object, hint: type, value: Json, path: str) -> Read:
    if not _is_change(start, value):
        return read(hint, value, path)
    with locate_errors(path):
        return _apply_changes(start, value)


def _is_change(start: object, value: Json) -> bool:
    return isinstance(value, Mapping) and "name" not in value and dataclasses.is_dataclass(start)


def _apply_changes(record: Any, changes: Table) -> Read:
    """Return a record of a catalog with `changes`, and those of them that change something."""
    if "format" in changes:
        record = _with_rounding(record)
    hints = typing.get_type_hints(type(record), include_extras=True)
    records, canonical = {}, {}
    for name in sorted(changes):
        _check_field(hints, name, hints)
        start, change = getattr(record, name), changes[name]
        if name == "format" and start is None and isinstance(change, Mapping):
            change = {"name": "fp32", **change}  # what a site without a format holds
        reading = _read_change(start, hints[name], change, name)
        # A format's own numbers have fixed types.
        records[name] = type(start)(reading.record) if isinstance(start, np.generic) else reading.record
        # As text, because NaN differs from itself.
        if repr(plain(records[name])) != repr(plain(start)):
            canonical[name] = reading.plain
    changed = dataclasses.replace(record, **records)
    if isinstance(record, Format) and "mantissa_bits" in records:
        limits = {"max_finite", "min_finite"} & set(records)
        # A narrower float32 has a smaller largest number; scaled formats keep theirs.
        changed = changed if limits else with_float32_range(changed)
        # One that is given stays in the canonical form, even if it is that of the wider format.
        canonical |= {name: plain(records[name]) for name in limits if "mantissa_bits" in canonical}
    return Read(changed, canonical)


def _with_rounding(record: Any) -> Any:
    """Return `record`; a site without a format gets the default rounding and overflow rule."""
    is_empty = isinstance(record, Site) and record.format is None
    return dataclasses.replace(Site.of("fp32"), format=None) if is_empty else record


def number(value: Json, kind: type) -> Json:
    """Return `value` as a `bool`, `int` or `float`.

    1 and 1.0 are equal where a float is meant, and 2.0 is 2 where an integer is. Raises `ValueError`.
    """
    is_bool = isinstance(value, bool | np.bool_)
    if kind is bool:
        if not is_bool:
            raise ValueError(f"must be true or false, got {shorten(value)}.")
        return bool(value)
    if is_bool or not isinstance(value, int | float | np.integer | np.floating):
        word = "an integer" if kind is int else "a number"
        raise ValueError(f"must be {word}, got {shorten(value)}.")
    if kind is float:
        try:
            return shortest(float(value))
        except OverflowError:  # an integer beyond all floats
            return math.inf if value > 0 else -math.inf
    if not math.isfinite(value) or int(value) != value:
        raise ValueError(f"must be an integer, got {shorten(value)}.")
    return int(value)


def default_of(field: dataclasses.Field) -> object:
    """Return the default of a field, `MISSING` if it has none."""
    return field.default_factory() if callable(field.default_factory) else field.default


def _options(hint: object) -> tuple:
    """Return the types that a hint allows, without its annotation."""
    hint = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if is_union else (hint,)


def _one_of(*kinds: object) -> Callable[[object], bool]:
    return lambda hint: any(option in kinds for option in _options(hint))


def _reject(value: Json, _: object) -> Read:
    raise ValueError(f"must be left as it is, got {shorten(value)}.")


def _read_text(value: Json, _: object) -> Json:
    if not isinstance(value, str):
        raise ValueError(f"must be a name, got {shorten(value)}.")
    return value


def _read_record(value: Json, hint: object) -> Read:
    cls = _options(hint)[0]
    return read_fields(cls, plain(value) if isinstance(value, cls) else _table(value))


def _read_mapping(value: Json, hint: object) -> Read:
    kind = typing.get_args(_options(hint)[0])[1]
    entries = {str(name): read(kind, part, str(name)) for name, part in sorted(_table(value).items())}
    return Read(
        {key: each.record for key, each in entries.items()},
        {key: each.plain for key, each in entries.items()},
    )


def _read_number(value: Json, hint: object) -> Json:
    options = _options(hint)
    if isinstance(value, tuple | list) and any(typing.get_origin(option) is tuple for option in options):
        return tuple(number(part, int) for part in value)
    converted = number(value, next(kind for kind in (bool, int, float) if kind in options))
    for allowed in getattr(hint, "__metadata__", ()) or (Range(),) if converted is not True else ():
        allowed.check(converted)
    return converted


def _read_names(value: Json, _: object) -> Json:
    if not isinstance(value, tuple | list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"must be a list of names, got {shorten(value)}.")
    return tuple(sorted(set(value)))


def _read_class(value: Json, hint: object) -> Read:
    base = _options(hint)[0]
    catalog, word = CLASSES[base]
    if isinstance(value, type) and issubclass(value, base):
        value = next((name for name, cls in catalog.items() if cls is value), None) or describe_own(value)
    elif isinstance(value, base):
        value = plain(value) if type(value) in catalog.values() else _describe_instance(value)
    name, changes = _name_and_changes(value)
    entry, own = _look_up_entry(name, changes, _entry_of(catalog, word))
    is_class = isinstance(entry, type) and issubclass(entry, base)
    if not is_class and not isinstance(entry, base):
        raise ValueError(f"must be a {word}, got {shorten(name)}, which is {shorten(entry)}.")
    cls: Any = entry if is_class else type(entry)
    # A schedule has numbers that differ between the runs of a batch.
    if base is Schedule and cls not in REGISTERED:
        raise ValueError(
            f"must be a schedule whose class is decorated with simlab.core.pytree.pytree, "
            f"got {shorten(name)}."
        )
    fields = read_fields(cls, changes, None if is_class else entry)
    return Read(fields.record, {"name": name} | own | fields.plain)


def _describe_instance(record: object) -> Table:
    """Return class, source and fields of a record, or its own name; the class must be of a module file."""
    cls: Any = type(record)
    if find_reference(record) or not find_reference(cls):
        return describe_own(record)
    fields = {
        field.name: plain(getattr(record, field.name)) for field in dataclasses.fields(cls) if field.init
    }
    return {**describe_own(cls), **fields}


def _read_named(value: Json, hint: object) -> Read:
    kind = next(option for option in _options(hint) if option in RECORDS)
    word, resolve = RECORDS[kind]
    kinds = ALTERNATIVES.get(kind, (kind,))
    if isinstance(value, GIVEN.get(kind, kinds)):
        value = name_record(value)
    elif kind is EnginePair and isinstance(value, Engine):
        raise ValueError(
            "must be an engine pair, got an engine. Use EnginePair(train, infer), or set engines.infer."
        )
    name, changes = _name_and_changes(value)
    record, own = _look_up_entry(name, changes, resolve)
    if not isinstance(record, kinds):
        raise ValueError(f"must be {word}, got {shorten(name)}, which is of type {type(record).__name__}.")
    reading = _overridden(record, name, changes) if kind is Objective else _apply_changes(record, changes)
    return Read(reading.record, {"name": name} | own | reading.plain)


def _look_up_entry(
    name: str, changes: dict[str, Json], resolve: Callable[[str, Entry], object]
) -> tuple[object, dict[str, str]]:
    """Return the entry called `name`, and the source code of its user-defined parts."""
    if not isinstance(name, str) or not references(name):
        return resolve(name, lookup), {}
    records, source = load_own(name, changes.pop("source", None))
    record = resolve(
        name, lambda catalog, part, word: records[part] if part in records else lookup(catalog, part, word)
    )
    return record, {"source": source}


def _overridden(objective: Any, name: str, changes: Table) -> Read:
    canonical = {}
    for override in sorted(changes):
        names, kind = override_names(objective), "field of objective"
        _check_verl_name(names, override, kind)
        if override not in names and (owner := _owner_of(override, name)):
            raise ValueError(f"unknown {kind} {override!r}, which {owner!r} has; allowed: {', '.join(names)}")
        lookup(dict.fromkeys(names), override, kind)
        written = changes[override]
        with locate_errors(override):
            if isinstance(written, tuple | list):
                value: Json = tuple(number(part, float) for part in written)
            elif override in CHOICES:
                value = _read_text(written, str)
            else:
                value = number(written, bool if override in SWITCHES else float)
        objective = with_overrides(objective, name, **{override: value})
        canonical[override] = list(value) if isinstance(value, tuple) else value
    return Read(objective, canonical)


@cache
def override_owners() -> dict[str, list[str]]:
    """Return each override of the built-in objectives with the modifiers and presets that have it."""
    owners: dict[str, list[str]] = {}
    for owner in (*(f"+{modifier}" for modifier in OBJECTIVE_MODIFIERS), *OBJECTIVES):
        record = get_objective(f"grpo{owner}" if owner.startswith("+") else owner)
        for override in override_names(record):
            owners.setdefault(override, []).append(owner)
    return owners


def _owner_of(override: str, name: str) -> str:
    """Return an objective like `name` that has `override`, "" if there is none."""
    first = next(iter(override_owners().get(override, ())), "")
    base = name.partition("+")[0]
    return f"{base if base in OBJECTIVES else 'grpo'}{first}" if first.startswith("+") else first


def _name_and_changes(value: Json) -> tuple[Json, dict[str, Json]]:
    """Split `"grpo"` or `{"name": "grpo", "clip_low": 0.1}`."""
    if isinstance(value, str):
        return value, {}
    table = dict(_table(value))
    if table.get("name") is None:
        raise ValueError(f"must have a name, got {shorten(table)}.")
    return table.pop("name"), table


def _table(value: Json) -> Table:
    if not isinstance(value, Mapping):
        is_record = dataclasses.is_dataclass(value)
        text = f"a record of type {type(value).__name__}" if is_record else shorten(value)
        raise ValueError(f"must be a name or a table of fields, got {text}.")
    return value


CONVERTER = Converter(detailed_validation=False)
# Later hooks come first. Each gets the value and the type of the field.
for check, read_kind in (
    (lambda _: True, _reject),
    (_one_of(str), _read_text),
    (lambda hint: dataclasses.is_dataclass(_options(hint)[0]), _read_record),
    (lambda hint: typing.get_origin(_options(hint)[0]) in (Mapping, dict), _read_mapping),
    (_one_of(bool, int, float), _read_number),
    (_one_of(tuple[str, ...]), _read_names),
    (_one_of(*CLASSES), _read_class),
    (_one_of(*RECORDS), _read_named),
):
    CONVERTER.register_structure_hook_func(check, read_kind)
# cattrs converts fields of exactly these types without a look at the hooks above.
for kind in (bool, int, float):
    CONVERTER.register_structure_hook(kind, _read_number)
