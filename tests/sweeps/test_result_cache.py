"""Locks end with their process, and tables have the same bytes for the same numbers."""

import errno
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from simlab.core.results import write_table
from simlab.sweeps.result_cache import ResultCache
from simlab.sweeps.tables import run_tables, runs_table

KEYS = [f"{i}{0:019x}" for i in range(1, 5)]
CLAIM = """
import sys
from pathlib import Path
from simlab.sweeps.result_cache import ResultCache
print(*ResultCache(Path(sys.argv[1])).acquire(sys.argv[2:], 3), flush=True)
sys.stdin.read()
"""


def metrics(steps=3, broken=None):
    values = np.arange(steps, dtype=np.float32)
    entropy = values.copy()
    if broken is not None:
        entropy[broken:] = np.nan
    return {"reward": values, "entropy": entropy, "mean_rho": values * np.nan, "by_bin": np.ones((steps, 2))}


def test_acquire_excludes_other_processes(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(tmp_path), *KEYS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout.readline().split() == KEYS[:3]
    cache = ResultCache(tmp_path)
    assert cache.acquire(KEYS, 4) == KEYS[3:]
    other.kill()
    other.wait()
    assert cache.acquire(KEYS[:3], 4) == KEYS[:3]


def test_a_disk_without_locks_is_an_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    with pytest.raises(OSError, match=r"no file locks in .*another disk"):
        ResultCache(tmp_path).acquire(KEYS, 1)


def test_folder_that_cannot_be_made_is_an_error_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        ResultCache(tmp_path / "file" / "out").make_folder()


def test_leftovers_of_finished_runs_alone_are_removed(tmp_path):
    cache = ResultCache(tmp_path)
    cache.write(KEYS[0], run_tables(KEYS[0], {"seed": 0}, metrics()))
    leftovers = {
        key: [
            cache.unfinished / f"{key}.npz",
            cache.unfinished / f".{key}.npz.a.tmp",
            cache.runs / f".{key}.steps.parquet.b.tmp",
        ]
        for key in KEYS[:2]
    }
    cache.unfinished.mkdir()
    fresh = cache.runs / f".{KEYS[0]}.vectors.parquet.c.tmp"
    for path in (*leftovers[KEYS[0]], *leftovers[KEYS[1]], fresh):
        path.write_bytes(b"")
        if path != fresh:
            os.utime(path, (0, 0))
    cache.remove_stale()
    assert fresh.exists(), "another process may write it"
    assert not any(path.exists() for path in leftovers[KEYS[0]])
    assert all(path.exists() for path in leftovers[KEYS[1]])
    assert cache.has(KEYS[0])


def test_finished_run_is_not_acquired(tmp_path):
    cache = ResultCache(tmp_path)
    cache.write(KEYS[0], run_tables(KEYS[0], {"seed": 0}, metrics()))
    assert cache.missing(KEYS) == KEYS[1:]
    assert cache.acquire(KEYS, 2) == KEYS[1:3]
    # Without its record, which comes last, a run is not there.
    (tmp_path / "store" / f"{KEYS[0]}.json").unlink()
    assert cache.missing(KEYS) == KEYS


def test_computing_seconds_count_all_sweeps_and_skip_a_cut_line(tmp_path):
    cache = ResultCache(tmp_path)
    assert cache.computing_seconds(KEYS) == 0.0
    cache.runs.mkdir()
    cache.add_seconds(KEYS[:2], 6.0)
    cache.add_seconds(KEYS[2:], 5.0)
    with open(cache.runs / ".seconds.jsonl", "a") as file:
        file.write('{"runs": [')
    assert cache.computing_seconds([KEYS[0], *KEYS[2:]]) == 8.0


def test_tables_of_a_run(tmp_path):
    tables = run_tables("k", {"seed": 0}, metrics())
    assert tables.record["status"] == "finished"
    steps = pd.DataFrame(tables.steps)
    assert list(steps["step"]) == [0, 1, 2]
    vectors = pd.DataFrame(tables.vectors)
    assert list(vectors["index"]) == [0, 1] * 3
    for folder in ("a", "b"):
        ResultCache(tmp_path / folder).write("k", tables)
    names = [path.name for path in (tmp_path / "a" / "store").iterdir()]
    assert all(
        (tmp_path / "a" / "store" / n).read_bytes() == (tmp_path / "b" / "store" / n).read_bytes()
        for n in names
    )


def test_run_ends_at_the_step_of_divergence():
    tables = run_tables("k", {}, metrics(steps=5, broken=2))
    assert (tables.record["status"], tables.record["diverged_at"], tables.record["steps_completed"]) == (
        "diverged",
        2,
        3,
    )
    assert list(pd.DataFrame(tables.steps)["step"]) == [0, 1, 2]


def test_runs_table_writes_mixed_columns_as_text(tmp_path):
    def record(key, clip):
        return {
            "run": key,
            "status": "finished",
            "diverged_at": -1,
            "dead_since": -1,
            "dead_because": "",
            "steps_completed": 1,
            "columns": {"clip": clip, "kind": "x"} if clip else {},
        }

    records = [record("a", 2.0), record("b", [0.5, 5.0]), record("c", None)]
    table = runs_table(records, ["x", "x", "y"])
    assert list(table["clip"])[:2] == ["2.0", "[0.5, 5.0]"]
    assert list(table["kind"].isna()) == list(table["clip"].isna()) == [False, False, True]
    write_table(tmp_path, "runs", table)
    numbers = runs_table([record("a", 2.0), record("b", 3.0), record("c", None)], ["x", "x", "y"])
    assert numbers["clip"].sum() == 5.0
