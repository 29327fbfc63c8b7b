"""The result of a sweep: tidy tables and a first plot."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from simlab.core.json_value import Json
from simlab.core.manifest import UNKNOWN_FAMILY, Manifest
from simlab.core.results import Results
from simlab.sweeps.column_names import PATHS, with_short_names
from simlab.sweeps.own_records import SOURCE
from simlab.sweeps.result_cache import ResultCache
from simlab.sweeps.tables import OWN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIG = "_config"
"""Ending of a column of the config that has the name of a metric, such as `response_length`."""
ALWAYS = ("objective",)
"""Columns of the config that `frame` shows although they do not vary."""


class SweepResult:
    """The runs of a sweep on disk. The columns of its tables are described in `simlab.sweeps.tables`."""

    def __init__(self, folder: Path, runs: pd.DataFrame):
        """Open the runs of the table `runs` in the sweep's `folder`."""
        self.folder = Path(folder)
        self._runs = runs
        self._tables: dict[str, pd.DataFrame] = {}

    def __repr__(self) -> str:
        """Return folder and counts."""
        broken = "".join(f"; {line}" for line in self.problems())
        return f"SweepResult({str(self.folder)!r}: {len(self._runs)} runs{broken})"

    def problems(self) -> list[str]:
        """Return a line for each way in which runs diverged or died, such as

        `2 of 24 runs dead: zero gradient since step 5`; several runs name the earliest step.
        """
        count, lines = len(self._runs), []
        diverged = self._runs[self._runs["status"] == "diverged"]
        if len(diverged):
            lines.append(
                f"{len(diverged)} of {count} runs diverged, first at step {diverged['diverged_at'].min()}"
            )
        for why, dead in self._runs[self._runs["status"] == "dead"].groupby("dead_because", sort=False):
            lines.append(f"{len(dead)} of {count} runs dead: {why} since step {dead['dead_since'].min()}")
        return lines

    @cached_property
    def manifest(self) -> Manifest:
        """Manifest of this sweep, or of the last one into the folder: config, versions, device, seconds."""
        return Results(self.folder).manifest

    def runs(self) -> pd.DataFrame:
        """Return one row per run: key, arm, status, config; `attrs["paths"]` has the full names."""
        return with_short_names(self._runs)

    def stored_runs(self) -> pd.DataFrame:
        """Return `runs` with full paths as column names."""
        return self._runs.copy()

    def fields(self, run: str) -> dict[str, Json]:
        """Return the fields of the run of that key by path, as `run_config` reads them.

        The table `runs` has lists as text, and so have columns that mix numbers with names.
        """
        return dict(ResultCache(self.folder).record(run)["columns"])

    def processor_families(self) -> list[str]:
        """Return on what each run was computed, in the order of `runs` (`UNKNOWN_FAMILY` if not recorded)."""
        records = map(ResultCache(self.folder).record, self._runs["run"])
        return [str(record.get("processor_family", UNKNOWN_FAMILY)) for record in records]

    def steps(self) -> pd.DataFrame:
        """Return one row per run and step: the scalar metrics."""
        return self._table("steps")

    def vectors(self) -> pd.DataFrame:
        """Return one row per run, step, metric and index: the metrics that are vectors."""
        return self._table("vectors")

    def frame(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one row per run and step: the scalar metrics, the arm, and columns of the config.

        `columns` are short names or full paths, and keep the given name; by default the objective
        and all columns that vary. One with the name of a metric gets the ending `_config`.
        Raises `ValueError` for a column that no run has, listing the columns.
        """
        return self._join_runs(self.steps(), columns)

    def vector_frame(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return `vectors` with columns of the config, as `frame` does."""
        return self._join_runs(self.vectors(), columns)

    def _join_runs(self, table: pd.DataFrame, columns: Sequence[str] | None) -> pd.DataFrame:
        chosen = self._chosen(columns)
        frame = table.merge(chosen, on="run", sort=False, suffixes=("", CONFIG))
        frame.attrs = dict(chosen.attrs)
        return frame

    def curves(
        self, metrics: str | Sequence[str] = ("reward", "rms_log_rho"), by: str = "arm", smooth: int = 10
    ) -> "Figure":
        """Return a figure with a panel per metric and a curve per value of the column `by`.

        Curves are means over runs of means over the last `smooth` steps, with their standard error.
        """
        # Matplotlib takes a second to import, which readers of tables do not need.
        from simlab.sweeps.sweep_curves import draw_curves

        names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        frame = self.frame(None if by == "arm" else [by])
        return draw_curves(frame, names, f"{by}{CONFIG}" if f"{by}{CONFIG}" in frame else by, smooth)

    @staticmethod
    def varying(table: pd.DataFrame) -> list[str]:
        """Return the columns that are not the same in every row."""
        return [str(name) for name in table if len({repr(value) for value in table[name]}) > 1]

    def _chosen(self, columns: Sequence[str] | None) -> pd.DataFrame:
        runs = self.runs()
        if columns is None:
            varying = self.varying(runs)
            shown = [name for name in runs if name in ALWAYS or name in varying]
            paths = runs.attrs[PATHS]
            columns = [n for n in shown if n not in OWN and not str(paths.get(n)).endswith(SOURCE)]
        short = {path: name for name, path in runs.attrs[PATHS].items()}
        left_out = [name for name in columns if name in self._runs and name not in {*short, *runs}]
        runs = runs.join(self._runs[left_out])
        named = {short.get(name, name): name for name in columns}
        if absent := [name for name in named if name not in runs]:
            raise ValueError(f"no column {absent[0]!r}; there are: {', '.join(runs)}")
        return runs.loc[:, list(dict.fromkeys(["run", "arm", *named]))].rename(columns=named)

    def _table(self, name: str) -> pd.DataFrame:
        if name not in self._tables:
            store = ResultCache(self.folder)
            self._tables[name] = pd.concat(
                [store.table(key, name) for key in self._runs["run"]], ignore_index=True
            )
        return self._tables[name].copy()


def load(folder: str | Path) -> SweepResult:
    """Return the last sweep into a folder.

    Args:
        folder: the `out` of `sweep`.

    Raises:
        FileNotFoundError: if no sweep into it has finished.
    """
    return SweepResult(Path(folder), Results(Path(folder)).table("runs"))


def filled_values(row: Mapping[str, object]) -> dict[str, Json]:
    """Return the values of a row of `runs` that are not empty, as plain values."""
    plain = {str(name): getattr(value, "tolist", lambda value=value: value)() for name, value in row.items()}
    return {name: value for name, value in plain.items() if value is not None and value == value}
