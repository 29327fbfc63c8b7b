"""What a sweep returns: tidy tables, and a quick look at them."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simlab.core.results import Results
from simlab.sweeps.store import Store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN = ("run", "arm", "status", "diverged_at", "steps_made")


class SweepResult:
    """The runs of a sweep on disk. The columns of its tables are described in `simlab.sweeps.tables`."""

    def __init__(self, folder: Path, runs: pd.DataFrame):
        """Open the runs of the table `runs` in the sweep's `folder`."""
        self.folder = Path(folder)
        self._runs = runs
        self._tables: dict[str, pd.DataFrame] = {}

    def __repr__(self) -> str:
        """Return folder and counts."""
        broken = sum(status == "diverged" for status in self._runs["status"])
        return f"SweepResult({str(self.folder)!r}: {len(self._runs)} runs, {broken} diverged)"

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Manifest of this sweep, or of the last one into the folder: config, versions, device, seconds."""
        return Results(self.folder).manifest

    def runs(self) -> pd.DataFrame:
        """Return one row per run: key, arm, status, config."""
        return self._runs.copy()

    def steps(self) -> pd.DataFrame:
        """Return one row per run and step: the scalar metrics."""
        return self._table("steps")

    def vectors(self) -> pd.DataFrame:
        """Return one row per run, step, metric and place: the metrics that are vectors."""
        return self._table("vectors")

    def frame(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return `steps` with columns of the config: those named, by default those that vary, and the arm."""
        return self.steps().merge(self._chosen(columns), on="run", sort=False)

    def vector_frame(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return `vectors` with columns of the config, as `frame` does."""
        return self.vectors().merge(self._chosen(columns), on="run", sort=False)

    def curves(
        self, metrics: str | Sequence[str] = ("reward", "std_rho"), by: str = "arm", smooth: int = 10
    ) -> "Figure":
        """Return a figure with a panel per metric and a curve per value of the column `by`.

        Curves are means over runs of means over the last `smooth` steps, with their standard error.
        """
        from simlab.sweeps.curves import draw_curves

        names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        return draw_curves(self.frame(None if by == "arm" else [by]), names, by, smooth)

    @staticmethod
    def varying(table: pd.DataFrame) -> list[str]:
        """Return the columns that are not the same in every row."""
        return [str(name) for name in table if len({repr(value) for value in table[name]}) > 1]

    def _chosen(self, columns: Sequence[str] | None) -> pd.DataFrame:
        if columns is None:
            columns = [name for name in self.varying(self._runs) if name not in OWN]
        absent = [name for name in columns if name not in self._runs]
        if absent:
            raise ValueError(f"no column {absent[0]!r}; there are: {', '.join(self._runs)}")
        return self._runs.loc[:, list(dict.fromkeys(["run", "arm", *columns]))]

    def _table(self, name: str) -> pd.DataFrame:
        if name not in self._tables:
            store = Store(self.folder)
            self._tables[name] = pd.concat(
                [store.table(key, name) for key in self._runs["run"]], ignore_index=True
            )
        return self._tables[name].copy()


def load(folder: str | Path) -> SweepResult:
    """Return the last sweep into `folder`; raises `FileNotFoundError` where none has finished."""
    return SweepResult(Path(folder), Results(Path(folder)).table("runs"))
