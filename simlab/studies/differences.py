"""Compare two records field by field, in the values that a config has for them."""

import dataclasses
from collections.abc import Iterator, Mapping

from simlab.core.json_value import Json
from simlab.engines import Site
from simlab.formats import FORMATS, ROUNDINGS, SCALINGS, Format, Rounding, Scaling, StochasticRounding
from simlab.objectives.objective import Objective, override_defaults
from simlab.sweeps.plain_values import plain

CATALOGS: dict[type, Mapping[str, object]] = {
    Format: FORMATS,
    Rounding: ROUNDINGS,
    StochasticRounding: ROUNDINGS,
    Scaling: SCALINGS,
}
"""Catalogs whose entries a config gives by name."""
EMPTY: dict[type, object] = {Format: FORMATS["fp32"], Scaling: SCALINGS["none"], Site: Site()}
"""Records that compute what None does."""


def compare(base: object, ours: object, path: str) -> Iterator[tuple[str, Json, Json]]:
    """Yield path and both values of each field in which two records differ.

    A record of a catalog is one value, its name; of another record each field is a value. None stands for
    what a record lacks.
    """
    base, ours = _fill(base, ours), _fill(ours, base)
    if repr(base) == repr(ours):
        return
    names, fields = [_name(base), _name(ours)], [_fields(base), _fields(ours)]
    if all(names) or not any(fields):
        yield path, _value(base), _value(ours)
        return
    if all(fields) and type(base) is not type(ours):
        yield path, type(base).__name__, type(ours).__name__
    for field in dict.fromkeys((*fields[0], *fields[1])):
        yield from compare(fields[0].get(field), fields[1].get(field), f"{path}.{field}")


def _fill(record: object, other: object) -> object:
    """Return `record`, or what stands for it next to `other` if it is None or a site without a format."""
    record = EMPTY.get(type(other)) if record is None else record
    if isinstance(record, Site) and record.format is None and isinstance(other, Site) and other.format:
        # Float32 has no overflow rule to compare.
        return dataclasses.replace(Site.of("fp32"), saturate=other.saturate)
    return record


def _name(record: object) -> str:
    entries = CATALOGS.get(type(record), {})
    return next((name for name, entry in entries.items() if repr(entry) == repr(record)), "")


def _fields(record: object) -> dict[str, object]:
    if isinstance(record, Objective):
        return override_defaults(record)
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        return {}
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _value(record: object) -> Json:
    """Return a catalog's name, a plain value, or the name of a function or of a class without fields."""
    if name := _name(record):
        return name
    if callable(record) or dataclasses.is_dataclass(record):
        return getattr(record, "__name__", type(record).__name__)
    return plain(record)
