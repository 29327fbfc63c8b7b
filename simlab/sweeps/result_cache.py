"""The result cache: runs on disk by content hash, written atomically, each by one process at a time.

A sweep's folder holds `store/KEY.steps.parquet`, `store/KEY.vectors.parquet` and `store/KEY.json`, which is
written last and marks a finished run. A stopped run resumes from `unfinished/KEY.npz`; it may
be deleted at any time. The tables next to `store/` are the last sweep's view; see `tables.py`.
"""

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from simlab.core.atomic import write_atomically
from simlab.core.json_value import Json
from simlab.core.progress import console
from simlab.core.results import write_table
from simlab.sweeps.tables import RunTables
from simlab.training.checkpoints import UnfinishedRun, count_steps, load_progress, save_progress

STALE_SECONDS = 60.0
"""Seconds after which nobody writes a file any more that has not changed: a write takes less than one."""


class ResultCache:
    """The finished runs in a folder, and the locks of the processes that compute others."""

    def __init__(self, folder: Path):
        """Open `folder`; nothing is written yet."""
        self.folder = Path(folder)
        self.runs = self.folder / "store"
        self.unfinished = self.folder / "unfinished"
        self._locks: int | None = None

    def make_folder(self) -> None:
        """Create the folder; raises `OSError` where it cannot be written, before anything is computed."""
        self._file()

    def has(self, key: str) -> bool:
        """Return whether the run of that key is finished."""
        return (self.runs / f"{key}.json").is_file()

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Return the keys whose runs are not finished, in order."""
        present = {path.stem for path in self.runs.glob("*.json")}
        return [key for key in keys if key not in present]

    def acquire(self, keys: Iterable[str], count: int) -> list[str]:
        """Lock up to `count` unfinished runs that no other process has locked; return their keys.

        A lock is on one byte of a file and ends with its process, even if killed. Locks only save work: two
        processes that compute one run write the same bytes.
        """
        acquired: list[str] = []
        for key in keys:
            if len(acquired) == count:
                break
            if self._lock(key):
                if self.has(key):
                    self.release([key])
                else:
                    acquired.append(key)
        return acquired

    def release(self, keys: Iterable[str]) -> None:
        """Release locks."""
        for key in keys:
            fcntl.lockf(self._file(), fcntl.LOCK_UN, 1, _byte_of(key))

    def lock_view(self) -> None:
        """Wait until no other process writes the sweep's tables; `release([VIEW])` ends it."""
        fcntl.lockf(self._file(), fcntl.LOCK_EX, 1, _byte_of(VIEW))

    def write(self, key: str, tables: RunTables) -> None:
        """Write a finished run; its record, with the checksums of all three files, comes last."""
        paths = {name: write_table(self.runs, f"{key}.{name}", getattr(tables, name)) for name in TABLES}
        sums = {name: _sha256(path.read_bytes()) for name, path in paths.items()}
        text = _text(tables.record | {"sha256": sums | {"record": _sha256(_text(tables.record))}})
        write_atomically(self.runs / f"{key}.json", lambda file: file.write(text))
        self._forget(key)

    def save_checkpoint(self, key: str, progress: UnfinishedRun) -> None:
        """Save the state of an unfinished run."""
        save_progress(self._checkpoint(key), progress)

    def progress(self, key: str) -> UnfinishedRun | None:
        """Return the progress of a run; None without a usable checkpoint (a damaged one is reported)."""
        try:
            return load_progress(self._checkpoint(key)) if self._checkpoint(key).is_file() else None
        except ValueError as error:
            console.print(f"{error}; the run begins anew", highlight=False, markup=False)
            return None

    def steps_completed(self, key: str) -> int:
        """Return how many steps an unfinished run has made; 0 for one that is damaged or not begun."""
        return count_steps(self._checkpoint(key)) if self._checkpoint(key).is_file() else 0

    def add_seconds(self, keys: Sequence[str], seconds: float) -> None:
        """Add the computing time of runs to the record; on a full disk it is lost."""
        line = json.dumps({"runs": list(keys), "seconds": round(seconds, 3)}) + "\n"
        with contextlib.suppress(OSError), open(self.runs / SECONDS, "a") as file:
            file.write(line)

    def computing_seconds(self, keys: Iterable[str]) -> float:
        """Return the noted computing time of runs, whichever sweeps computed them."""
        path, wanted, total = self.runs / SECONDS, set(keys), 0.0
        for line in path.read_text().splitlines() if path.is_file() else ():
            with contextlib.suppress(ValueError):  # a line that a kill cut
                noted = json.loads(line)
                total += noted["seconds"] * len(wanted & set(noted["runs"])) / len(noted["runs"])
        return total

    def remove_stale(self) -> None:
        """Remove leftovers of killed processes for finished runs: checkpoints, half-written files.

        Experiments that share a cache may compute the same runs, so another process may still write them:
        only files that have not changed for `STALE_SECONDS` go.
        """
        latest = time.time() - STALE_SECONDS
        for path in (*self.unfinished.glob("*.npz*"), *self.runs.glob(".*.tmp")):
            if self.has(path.name.lstrip(".").partition(".")[0]):
                with contextlib.suppress(FileNotFoundError):  # the other process has finished
                    if path.stat().st_mtime < latest:
                        path.unlink()

    def record(self, key: str) -> Mapping[str, Json]:
        """Return the record of a finished run: its columns, `status` and `diverged_at`.

        Raises `DamagedError` for a file that cannot be read.
        """
        with _whole(self.runs / f"{key}.json") as path:
            record = json.loads(path.read_bytes())
            sums = record.pop("sha256", {})
            _check(_text(record), sums.get("record"))
            return record | {"sha256": sums}

    def table(self, key: str, name: str) -> pd.DataFrame:
        """Return a finished run's `steps` or `vectors`; raises `DamagedError`."""
        expected = self.record(key)["sha256"].get(name)
        with _whole(self.runs / f"{key}.{name}.parquet") as path:
            content = path.read_bytes()
            _check(content, expected)
            return pd.read_parquet(io.BytesIO(content))

    def _checkpoint(self, key: str) -> Path:
        return self.unfinished / f"{key}.npz"

    def _forget(self, key: str) -> None:
        # With what a kill has left half-written of it.
        for path in self.unfinished.glob(f"*{key}.npz*"):
            path.unlink(missing_ok=True)

    def _lock(self, key: str) -> bool:
        try:
            fcntl.lockf(self._file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte_of(key))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise OSError(
                error.errno, f"no file locks in {self.runs} ({error.strerror}). Pass an --out on another disk"
            ) from error
        return True

    def _file(self) -> int:
        # Closing any descriptor of the file would drop all locks of this process: one, and never closed.
        if self._locks is None:
            self.runs.mkdir(parents=True, exist_ok=True)
            self._locks = os.open(self.runs / ".locks", os.O_RDWR | os.O_CREAT, 0o644)
        return self._locks


class DamagedError(ValueError):
    """A stored file that differs from what was written."""


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    try:
        yield path
    except (OSError, ValueError, AttributeError) as error:  # pyarrow's and JSON's errors are among them
        record = path.with_name(f"{path.name.split('.')[0]}.json")
        raise DamagedError(
            f"{path} must be as it was written, got a damaged file ({str(error).splitlines()[0]}). Delete "
            f"{record.name} next to it and call again: that run alone is computed anew"
        ) from error


VIEW = "0" * 15
SECONDS = ".seconds.jsonl"
TABLES = ("steps", "vectors")


def _text(record: Mapping[str, Json]) -> bytes:
    return (json.dumps(record, indent=1, sort_keys=True) + "\n").encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _check(content: bytes, expected: str | None) -> None:
    # Runs of earlier versions have no checksums.
    if expected is not None and _sha256(content) != expected:
        raise ValueError("its checksum is not that of what was written")


def _byte_of(key: str) -> int:
    # 60 bits of the key; two runs that met there would only wait for each other.
    return int(key[:15], 16)
