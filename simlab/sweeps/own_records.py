"""Records that are not built in: objectives, tasks, engines, schedules and formats of a researcher.

In a config such a record is `{"name": "mymodule:mine", "source": "0123456789ab"}`. The source is the digest
of the module's files, so that a changed record has another key. A record that stands in no module file (of a
notebook, or made on the way) has the digest of its content, and is pickled for worker processes.
"""

import base64
import dataclasses
import sys
from collections.abc import Iterable, Mapping

import cloudpickle

from simlab.core.fingerprint import fingerprint
from simlab.core.own_code import is_own_code
from simlab.core.plugins import load_plugin, references
from simlab.core.pytree import REGISTERED, register_class

MAIN = "__main__"
SOURCE = ".source"
"""Endings of the names of the columns of sources."""
_CARRIED: dict[str, object] = {}
"""Records without a module file, by their source."""
_DESCRIBED: dict[int, tuple[object, dict[str, str]]] = {}
"""Names and sources of `_CARRIED`, by identity of the record, which is kept so that no other gets it."""

_REFERENCES: dict[int, tuple[object, str]] = {}
"""References of the records of modules, by identity: a module that is loaded anew holds other objects."""


def load_own(name: str, source: str | None = None) -> tuple[dict[str, object], str]:
    """Return the records that `name` refers to, by reference, and their source.

    `name` holds one `module:name` or more, as `f32/mymodule:engine` and `mymodule:mine+tis` do. Raises
    `ValueError` for a reference that cannot be loaded, and for a source other than `source`.
    """
    digests = iter((source or "").split("-"))
    parts = dict.fromkeys(references(name))
    loaded = {reference: _load(reference, next(digests, "")) for reference in parts}
    current = "-".join(digest for _, digest in loaded.values())
    if source and current != source:
        raise ValueError(
            f"the source of {name!r} is {current}, but this run was made with {source}. "
            "Restore that version, or start the sweep again."
        )
    return {reference: record for reference, (record, _) in loaded.items()}, current


def _load(reference: str, source: str) -> tuple[object, str]:
    if source in _CARRIED:
        return _CARRIED[source], source
    module, _, name = reference.partition(":")
    if module != MAIN:
        return load_plugin(reference)
    if not hasattr(sys.modules[MAIN], name):
        raise ValueError(f"{reference!r} is not defined in this process. Move it into a module file.")
    record = getattr(sys.modules[MAIN], name)
    return record, _carry(record, reference)["source"]


def describe_own(record: object) -> dict[str, str]:
    """Return name and source of a record: of its module's file, or of its content where it has none.

    Raises `ValueError` for a record that cannot be pickled or distinguished from its changed version.
    """
    if reference := find_reference(record):
        return {"name": reference, "source": load_plugin(reference)[1]}
    if id(record) in _DESCRIBED:
        return _DESCRIBED[id(record)][1]
    return _carry(
        record, find_variable(record) or f"{MAIN}:{type(record).__name__}-{fingerprint(record)[:6]}"
    )


def find_reference(record: object) -> str:
    """Return `module:name` of a public value of a module file, "" for another record."""
    values = [each for each in _public_values() if not each[0].startswith(f"{MAIN}:")]
    # `load_plugin` may load a module anew: the researcher's objects are then those of the module before.
    for reference, value in values:
        if dataclasses.is_dataclass(value):
            _REFERENCES.setdefault(id(value), (value, reference))
    _, known = _REFERENCES.get(id(record), (None, ""))
    return next((reference for reference, value in values if value is record), known)


def find_variable(record: object) -> str:
    """Return `__main__:name` of a public value of a notebook or script, "" for another record."""
    names = (name for name, value in _public_values() if value is record)
    return next((name for name in names if name.startswith(f"{MAIN}:")), "")


def _public_values() -> list[tuple[str, object]]:
    """Return `module:name` and value of all public names in modules that are not built in.

    The module that defines a class comes before those that import it.
    """
    values = [
        (f"{module}:{name}", value)
        for module, loaded in list(sys.modules.items())
        if is_own_code(module) and (module == MAIN or getattr(loaded, "__file__", None))
        for name, value in list(vars(loaded).items())
        if not name.startswith("_")
    ]
    return sorted(values, key=lambda each: not each[0].startswith(f"{_module_of(each[1])}:"))


def _module_of(value: object) -> object:
    return value.__module__ if isinstance(value, type) else None


def _carry(record: object, name: str) -> dict[str, str]:
    try:
        source = fingerprint(record)
        pickle_record(record)
    except Exception as error:  # whatever pickling may raise
        raise ValueError(
            f"{name} cannot be carried to worker processes ({error}). Define it in a module file, and "
            "name it as 'mymodule:name'."
        ) from error
    _CARRIED[source] = record
    _DESCRIBED[id(record)] = record, {"name": name, "source": source}
    return _DESCRIBED[id(record)][1]


def pickle_record(record: object) -> str:
    """Return a record as text, with the code that no module file holds."""
    # A class that is rebuilt elsewhere does not run its decorators: it is registered where it is read.
    classes = [cls for cls in _classes_in(record) if cls in REGISTERED and is_own_code(cls.__module__)]
    return base64.b85encode(cloudpickle.dumps((record, list(dict.fromkeys(classes))))).decode()


def _classes_in(record: object) -> Iterable[type]:
    if isinstance(record, type):
        yield record
    elif dataclasses.is_dataclass(record):
        yield type(record)
        for field in dataclasses.fields(record):
            yield from _classes_in(getattr(record, field.name))
    elif isinstance(record, tuple | list):
        for part in record:
            yield from _classes_in(part)


def collect_records(tables: Iterable[object]) -> dict[str, str]:
    """Return what another process needs for these configs: pickled records by source."""
    sources = {source for table in tables for source in _sources(table)}
    return {source: pickle_record(_CARRIED[source]) for source in sorted(sources & _CARRIED.keys())}


def _sources(table: object) -> Iterable[str]:
    if isinstance(table, Mapping):
        yield from str(table.get("source", "")).split("-")
        for value in table.values():
            yield from _sources(value)


def receive(records: Mapping[str, str]) -> None:
    """Take up what `collect_records` returned in another process.

    Raises `ValueError` for a record whose code here, in an imported module, is another.
    """
    for source, text in records.items():
        record, classes = cloudpickle.loads(base64.b85decode(text))
        for cls in classes:
            register_class(cls)
        if fingerprint(record) != source:
            raise ValueError(
                "a record of this sweep has changed in its module since. Start the process again."
            )
        _CARRIED[source] = record
