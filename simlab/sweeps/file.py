"""A sweep described in a TOML file.

    name = "first_sweep"            # also the default folder, runs/first_sweep
    runs_per_batch = 4              # optional

    [base]                          # a run in plain values, see RunConfig
    engines = "f32/bf16"
    task = "add"
    model = "tiny-dense"
    steps = 300
    [base.optimizer]
    learning_rate = 3e-4

    [arms."no correction"]          # optional: named points, each a table of changes
    objective = "grpo"
    [arms.TIS]
    objective = { name = "grpo+tis", correction_clip = 5.0 }

    [sampled]                       # optional: random points
    count = 20
    seed = 0
    [sampled.fields]
    "optimizer.learning_rate" = { log_uniform = [1e-5, 1e-3] }

    [over]                          # optional: all combinations
    seed = [0, 1]

The grid is the product of arms, sampled and over. What is written here has the keys of the same in Python.
Own records, `objective = "mymodule:mine"`, are found in the folder of the file, too.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simlab.core.catalog import lookup
from simlab.core.json_value import Json
from simlab.core.paths import find_shipped
from simlab.core.plugins import add_plugin_folder
from simlab.sweeps.aliases import ALIASES
from simlab.sweeps.column_names import flatten
from simlab.sweeps.config import FIELDS, suggest_field
from simlab.sweeps.grids import SCALES, Grid, as_grid, grid, listed, sampled

PARTS = ("name", "runs_per_batch", "base", "arms", "sampled", "over")
SAMPLED = ("count", "seed", "fields")


@dataclass(frozen=True)
class Described:
    """Contents of a sweep file."""

    name: str
    runs_per_batch: int | None
    base: Mapping[str, Json]
    grid: Grid


def read_file(path: Path) -> Described:
    """Return the sweep in a TOML file; raises `ValueError` naming what is wrong in it, and where."""
    path = find_shipped(path)
    parts = load_toml(path)
    for name in parts:
        _check_part(path.name, name)
    for folder in (Path.cwd(), path.parent):
        add_plugin_folder(folder)
    if "base" not in parts:
        raise ValueError(f"{path}: the table [base] is missing")
    _check_types(path.name, parts)
    points = as_grid(None)
    if "arms" in parts:
        points = points * listed({name: _flatten_keys(changes) for name, changes in parts["arms"].items()})
    if "sampled" in parts:
        points = points * _read_sampled(parts["sampled"])
    points = points * grid(_flatten_keys(parts.get("over", {})))
    return Described(parts.get("name", path.stem), parts.get("runs_per_batch"), parts["base"], points)


def _check_part(file: str, name: str) -> None:
    """Raise `ValueError` for an unknown part of a file, a field of the run among them."""
    if name in PARTS:
        return
    if name.partition(".")[0] in (*FIELDS, *ALIASES):
        raise ValueError(f"{file}: {name!r} is a field of the run. Put it under [base] or [over].")
    if meant := suggest_field(name):
        raise ValueError(
            f"{file}: fields of the run must be under [base] or [over], got {name!r}. Did you mean {meant}"
        )
    lookup(dict.fromkeys(PARTS), name, f"part of {file}")


def load_toml(path: Path) -> dict[str, Json]:
    """Return the tables of a TOML file; raises `ValueError` naming the file."""
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error


def _check_types(file: str, parts: Mapping[str, Json]) -> None:
    for name in ("base", "arms", "sampled", "over"):
        if not isinstance(parts.get(name, {}), Mapping):
            raise ValueError(f"{file}: {name} must be a table, got {parts[name]!r}.")
    for arm, changes in parts.get("arms", {}).items():
        if not isinstance(changes, Mapping):
            raise ValueError(f"{file}: arms.{arm} must be a table of changes, got {changes!r}.")
    if parts.get("arms") == {}:
        raise ValueError(f"{file}: arms must name at least one arm, got none. Remove [arms], or add one.")
    if not isinstance(parts.get("sampled", {}).get("fields", {}), Mapping):
        raise ValueError(f"{file}: sampled.fields must be a table, got {parts['sampled']['fields']!r}.")
    if not isinstance(parts.get("name", ""), str):
        raise ValueError(f"{file}: name must be a string, got {parts['name']!r}.")
    size = parts.get("runs_per_batch", 1)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"{file}: runs_per_batch must be an integer >= 1, got {size!r}.")


def _read_sampled(part: Mapping[str, Json]) -> Grid:
    for name in part:
        lookup(dict.fromkeys(SAMPLED), name, "key of [sampled]")
    if absent := [name for name in SAMPLED if name not in part]:
        raise ValueError(f"[sampled] needs {', '.join(absent)}")
    return sampled(part["count"], part["seed"], _flatten_keys(part["fields"]))


def _flatten_keys(table: Mapping[str, Json]) -> dict[str, Json]:
    """Return unquoted dotted keys (`optimizer.learning_rate = [...]`, which TOML nests) as one name again.

    A table with a `name` is a value: an entry of a catalog with changes. So is one with a scale: a range.
    """
    return dict(flatten(table, lambda value: bool({"name", *SCALES} & set(value))))
