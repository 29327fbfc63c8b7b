"""Read the run to export from a TOML file or from a finished sweep."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simlab.core.catalog import lookup
from simlab.core.paths import find_shipped
from simlab.sweeps.config import RunConfig, run_config
from simlab.sweeps.file import load_toml, read_file
from simlab.sweeps.grids import Point
from simlab.sweeps.plan import REPEATS
from simlab.sweeps.result import load


def read_run(path: Path, arm: str | None = None) -> tuple[str, RunConfig]:
    """Return the name and the config of a run: of `arm`; a sweep with one arm needs no name.

    `path` is a sweep's TOML, a TOML of one run's fields, or the folder of a sweep. Runs of an arm may differ
    in `REPEATS`; the first one is exported.
    Raises `FileNotFoundError`, or `ValueError` with the reason and the names of the arms.
    """
    if path.is_dir():
        return _of_folder(path, arm)
    path = find_shipped(path)
    table = load_toml(path)
    if "base" not in table:
        name = table.pop("name", path.stem)
        return name, run_config({key: value for key, value in table.items() if key != "runs_per_batch"})
    described = read_file(path)
    points: dict[str, list[Point]] = {}
    for point in described.grid.points:
        points.setdefault(point.arm or described.name, []).append(point)
    point, *others = _chosen(points, arm)
    _check_alike(path.name, [point, *others])
    return _join_names(described.name, point.arm), run_config(described.base, point.changes)


def _check_alike(file: str, points: Sequence[Point]) -> None:
    """Raise `ValueError` for points that differ in more than their seed: only one run is exported."""
    names = dict.fromkeys(name for point in points for name in point.changes)
    varied = [name for name in names if len({repr(point.changes.get(name)) for point in points}) > 1]
    fields = [name for name in varied if name not in REPEATS]
    if fields:
        raise ValueError(
            f"{file} must describe one run per arm, got {len(points)} that differ in {', '.join(fields)}. "
            f"Keep one value in the file, or name the points under [arms] and choose one with --arm."
        )


def _of_folder(folder: Path, arm: str | None) -> tuple[str, RunConfig]:
    table = folder / "runs.parquet"
    if not table.is_file():
        raise FileNotFoundError(f"no finished sweep in {folder}: runs.parquet is missing")
    result = load(folder)
    rows = {str(row["arm"]): row for row in result.stored_runs().iloc[::-1].to_dict("records")}
    chosen = _chosen(rows, arm)
    # The result names the warm start by its hash; the verl run starts from its own model.
    changes = {name: value for name, value in result.fields(chosen["run"]).items() if name != "warm_start"}
    return _join_names(folder.name, str(chosen["arm"])), run_config({}, changes)


def _chosen(arms: Mapping[str, Any], arm: str | None) -> Any:
    if arm is None and len(arms) > 1:
        raise ValueError(f"the sweep has {len(arms)} arms. Name one with --arm: {', '.join(arms)}")
    return next(iter(arms.values())) if arm is None else lookup(arms, arm, "arm")


def _join_names(name: str, arm: str | None) -> str:
    return f"{name}-{arm}".replace(" ", "_") if arm and arm != name else name
