"""Read the metrics of trackio's SQLite files."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from simlab.core.json_value import Json
from simlab.diagnosis.log import Problem, printable

SUFFIX = ".db"
MAX_ROWS = 10**6
MAX_VALUE_BYTES = 2**20
QUERY = "SELECT run_name, step, metrics FROM metrics ORDER BY id LIMIT ?"


def read_trackio_file(path: Path, problems: list[Problem]) -> Iterator[dict[str, Json]]:
    """Yield one entry per logged step of the newest run; `problems` names the run if there are several.

    Raises:
        ValueError: The file is not a database of trackio.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            # A hostile schema may not call functions, and a view is not a table.
            database.execute("PRAGMA trusted_schema = OFF")
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            kind = database.execute("SELECT type FROM sqlite_master WHERE name = 'metrics'").fetchone()
            if kind != ("table",):
                raise ValueError(f"{path.name} must be a database of trackio, got no table metrics.")
            rows = database.execute(QUERY, (MAX_ROWS,)).fetchall()
    except sqlite3.Error as error:
        raise ValueError(f"{path.name} must be a database of trackio, got: {error}") from error
    if not rows:
        return
    newest, names = rows[-1][0], {str(row[0]) for row in rows}
    if len(names) > 1:
        reason = f"{len(names)} runs: only the newest, {printable(str(newest))[:100]}, is read"
        problems.append(Problem(path.name, None, reason))
    for number, (name, step, metrics) in enumerate(rows, start=1):
        if name != newest:
            continue
        try:
            entry = json.loads(metrics)
        except (ValueError, TypeError, RecursionError) as error:
            problems.append(Problem(path.name, number, f"not JSON ({str(error)[:100]})"))
            continue
        if isinstance(entry, dict):
            yield {**entry, "step": step}
