"""Runs on disk, by the hash of what they are: written whole or not at all, each by one process at a time.

A sweep's folder holds `store/KEY.steps.parquet`, `store/KEY.vectors.parquet` and last `store/KEY.json`, whose
presence says that the run is there. The tables beside `store/` are the last sweep's view; see `tables.py`.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from simlab.core.atomic import write_atomically
from simlab.core.results import write_table
from simlab.sweeps.tables import RunTables


class Store:
    """The finished runs below a folder, and the claims of the processes that compute others."""

    def __init__(self, folder: Path):
        """Open `folder`; nothing is written yet."""
        self.folder = Path(folder)
        self.runs = self.folder / "store"
        self._locks: int | None = None

    def has(self, key: str) -> bool:
        """Return whether the run of that key is finished."""
        return (self.runs / f"{key}.json").is_file()

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Return those of `keys` that are not finished, in their order."""
        present = {path.stem for path in self.runs.glob("*.json")}
        return [key for key in keys if key not in present]

    def claim(self, keys: Iterable[str], count: int) -> list[str]:
        """Claim up to `count` unfinished runs that no other process has claimed.

        A claim is a lock on one byte of a file, which ends with its process, however that ends. It only saves
        work: two processes that computed one run would write the same bytes.
        """
        found: list[str] = []
        for key in keys:
            if len(found) == count:
                break
            if self._lock(key):
                if self.has(key):
                    self.release([key])
                else:
                    found.append(key)
        return found

    def release(self, keys: Iterable[str]) -> None:
        """Give up claims."""
        for key in keys:
            fcntl.lockf(self._file(), fcntl.LOCK_UN, 1, _place(key))

    def lock_view(self) -> None:
        """Wait until no other process writes the sweep's tables; `release([VIEW])` ends it."""
        fcntl.lockf(self._file(), fcntl.LOCK_EX, 1, _place(VIEW))

    def write(self, key: str, tables: RunTables) -> None:
        """Write a finished run; its record comes last."""
        write_table(self.runs, f"{key}.steps", tables.steps)
        write_table(self.runs, f"{key}.vectors", tables.vectors)
        text = json.dumps(tables.record, indent=1, sort_keys=True) + "\n"
        write_atomically(self.runs / f"{key}.json", lambda file: file.write(text.encode()))

    def record(self, key: str) -> Mapping[str, Any]:
        """Return what is known of a finished run: its columns, `status` and `diverged_at`.

        Raises `DamagedError` for a file that cannot be read.
        """
        with _whole(self.runs / f"{key}.json") as path:
            return json.loads(path.read_text())

    def table(self, key: str, name: str) -> pd.DataFrame:
        """Return a finished run's `steps` or `vectors`; raises `DamagedError`."""
        with _whole(self.runs / f"{key}.{name}.parquet") as path:
            return pd.read_parquet(path)

    def _lock(self, key: str) -> bool:
        try:
            fcntl.lockf(self._file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(key))
        except OSError:
            return False
        return True

    def _file(self) -> int:
        # Closing any descriptor of the file would drop all locks of this process: one, and never closed.
        if self._locks is None:
            self.runs.mkdir(parents=True, exist_ok=True)
            self._locks = os.open(self.runs / ".claims", os.O_RDWR | os.O_CREAT, 0o644)
        return self._locks


class DamagedError(ValueError):
    """A stored file that no longer is what was written."""


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    try:
        yield path
    except (OSError, ValueError) as error:  # pyarrow's and JSON's errors are among them
        record = path.with_name(f"{path.name.split('.')[0]}.json")
        raise DamagedError(
            f"{path} cannot be read ({str(error).splitlines()[0]}); delete {record.name} beside it and call "
            "again: that run alone is computed anew"
        ) from error


VIEW = "0" * 15


def _place(key: str) -> int:
    # 60 bits of the key; two runs that met there would only wait for each other.
    return int(key[:15], 16)
