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
    loaded = {reference: _load(reference, next(digests, "")) for reference in references(name)}
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
    _, known = _REFERENCES.get(id(record), (None, ""))
    for reference in (*_places(record), *filter(None, [known])):
        if not reference.startswith(f"{MAIN}:"):
            _REFERENCES[id(record)] = record, reference
            return {"name": reference, "source": load_plugin(reference)[1]}
    if id(record) in _DESCRIBED:
        return _DESCRIBED[id(record)][1]
    name = next(iter(_places(record)), None)
    return _carry(record, name or f"{MAIN}:{type(record).__name__}-{fingerprint(record)[:6]}")


def _places(record: object) -> list[str]:
    """Return where a record is the value of a public name in a module that is not built in."""
    return [
        f"{module}:{name}"
        for module, loaded in list(sys.modules.items())
        if is_own_code(module) and (module == MAIN or getattr(loaded, "__file__", None))
        for name, value in list(vars(loaded).items())
        if value is record and not name.startswith("_")
    ]


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
