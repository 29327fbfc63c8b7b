"""Write records as plain values: their names, or tables of their fields."""

import dataclasses
import typing
from collections.abc import Mapping

import numpy as np

from simlab.core.json_value import Json
from simlab.engines import ENGINES, EnginePair
from simlab.formats import FORMATS, ROUNDINGS, SCALINGS
from simlab.models.config import MODELS
from simlab.objectives import OBJECTIVES
from simlab.sweeps.own_records import describe_own, find_reference, find_variable
from simlab.tasks import TASKS, Task
from simlab.training.schedules import SCHEDULES, Schedule

CLASSES: dict[type, tuple[Mapping[str, type], str]] = {
    Task: (TASKS, "task"),
    Schedule: (SCHEDULES, "schedule"),
}
"""Types of which a name means a class, with their catalogs and the word for an entry."""
CATALOGS = (OBJECTIVES, ENGINES, MODELS, FORMATS, ROUNDINGS, SCALINGS)


def catalog_name(record: object) -> str | None:
    """Return the name of a record that is an entry of a catalog, or a pair of two engines that are."""
    if isinstance(record, EnginePair) and record.replay == "none":
        train, infer = catalog_name(record.train), catalog_name(record.infer)
        return f"{train}/{infer}" if train and infer else None
    return next((name for catalog in CATALOGS for name, entry in catalog.items() if entry is record), None)


def name_record(record: object) -> dict[str, str]:
    """Return the name of a record, and the sources of its parts that no catalog holds.

    A pair that no module file defines has the names of its engines, and its `replay`.

    Raises:
        ValueError: For a record that cannot be pickled or distinguished from its changed version.
    """
    if name := catalog_name(record):
        return {"name": name}
    if not isinstance(record, EnginePair) or find_reference(record):
        return describe_own(record)
    engines = record.train, record.infer
    if not all(map(_has_name, engines)) and find_variable(record):
        return describe_own(record)
    sides = [name_record(engine) for engine in engines]
    # A reference that both sides have is loaded once.
    sources = {side["name"]: side["source"] for side in sides if "source" in side}
    table = {"name": "/".join(side["name"] for side in sides)}
    table |= {"source": "-".join(sources.values())} if sources else {}
    return table | ({"replay": record.replay} if record.replay != "none" else {})


def _has_name(record: object) -> bool:
    return any(find(record) for find in (catalog_name, find_reference, find_variable))


def plain(record: object) -> Json:
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
    return shortest(float(typing.cast("typing.SupportsFloat", record)))


def shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32: 0.1 and float32(0.1) are one number."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))
