"""Read a log of any framework from a file or a folder; what is broken is named, the rest is kept."""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simlab.diagnosis.log import Problem, TokenLog, printable
from simlab.diagnosis.rows import EXPERTS, MAX_TOKENS, NAMED, Ragged, checked, joined
from simlab.diagnosis.schema import COLUMNS, column_of
from simlab.diagnosis.slime import read_slime

LONGEST_LINE = 2**27
TYPES = {"float": np.float32, "int": np.int64, "int16": np.int16, "text": object}
Part = tuple[TokenLog | None, list[Problem]]


class Read(NamedTuple):
    """A log, what had to be left out, and the files it came from."""

    log: TokenLog
    problems: list[Problem]
    files: list[str]


def read_log(path: Path) -> Read:
    """Return the token-level log in `path`: a file, or all logs of a folder.

    Parquet and JSON lines as in `schema.COLUMNS`, and `.pt` files of slime's `--save-debug-train-data`.
    Raises `FileNotFoundError` when nothing is there, `ValueError` when nothing of it can be used.
    """
    parts, problems = [], []
    files = _files(path)
    tokens = 0
    for file in files:
        mine = []
        for log, found in _read(file):
            mine += found
            if log is not None:
                parts.append((file.name, log))
                tokens += len(log.logp_train)
                if tokens > MAX_TOKENS:
                    raise ValueError(f"over {tokens:,} tokens; at most {MAX_TOKENS:,}: name fewer files")
        problems += mine[:NAMED]
        if len(mine) > NAMED:
            problems.append(Problem(file.name, None, f"{len(mine) - NAMED} more rows are unusable"))
    if not parts:
        reasons = "; ".join(map(str, problems[:3])) or "no token-level log"
        raise ValueError(printable(f"nothing usable in {path}: {reasons}"))
    log, found = joined(parts)
    return Read(log, problems + found, [file.name for file in files])


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        # Files only, and none that a link leads to elsewhere.
        inside = [file for file in sorted(path.iterdir()) if file.suffix in READERS and not file.is_symlink()]
        files = [file for file in inside if file.is_file()]
        if not files:
            raise FileNotFoundError(f"no log in {path}; known are {', '.join(READERS)}")
        return files
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}" if not path.exists() else f"{path} is no regular file")
    if path.suffix not in READERS:
        raise ValueError(f"{path.name}: unknown kind of log; known are {', '.join(READERS)}")
    return [path]


def _read(file: Path) -> Iterator[Part]:
    """Parts of a file; an error of the format ends the file, not the whole."""
    try:
        yield from READERS[file.suffix](file)
    except (ValueError, OSError, pa.ArrowException, MemoryError, OverflowError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        yield None, [Problem(file.name, None, text.removeprefix(f"{file.name}: ")[:300])]


def _parquet(file: Path) -> Iterator[Part]:
    # A short dictionary may stand for any length of text.
    texts = [field.name for field in pq.read_schema(file) if pa.types.is_string(field.type)]
    with pq.ParquetFile(file, read_dictionary=texts) as source:
        columns = {name: column_of(name) for name in source.schema_arrow.names}
        wanted = [name for name, column in columns.items() if column]
        twice = [name for name, count in Counter(source.schema_arrow.names).items() if count > 1]
        if twice:
            raise ValueError(f"it has {printable(twice[0])} twice")
        if {"completion", "advantage"} <= set(columns):
            raise ValueError("TRL's completions hold no log-probs; name the folder of its trainer_state.json")
        _check_size(source.metadata, wanted)
        first = 1
        for index in range(source.metadata.num_row_groups):
            rows = source.metadata.row_group(index).num_rows
            try:
                table = source.read_row_group(index, columns=wanted)
            except (OSError, pa.ArrowException) as error:
                reason = f"unreadable to row {first + rows - 1}: {str(error).splitlines()[0][:200]}"
                yield None, [Problem(file.name, first, reason)]
            else:
                yield _table(file.name, first, table)
            first += rows


def _check_size(metadata: pq.FileMetaData, wanted: list[str]) -> None:
    """Refuse what would not fit, unread: a few bytes may stand for any number of values."""
    claimed = dict.fromkeys(wanted, 0)
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for place in range(group.num_columns):
            column = group.column(place)
            name = column.path_in_schema.split(".")[0]
            if name in claimed:
                claimed[name] += column.num_values
    for name, values in claimed.items():
        if values > MAX_TOKENS and column_of(name) not in EXPERTS:
            raise ValueError(f"a column claims {values:,} values; at most {MAX_TOKENS:,} tokens")
    # Read as integers of 8 bytes, then kept in 2 to 4.
    size, free = 12 * sum(claimed.values()), _free_memory()
    if size > free:
        raise ValueError(f"unpacked its columns take {size / 2**30:.3g} GiB; {free / 2**30:.3g} are free")


def _free_memory() -> float:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return math.inf


def _table(file: str, first: int, table: pa.Table) -> Part:
    tokens, scalars, problems = {}, {}, []
    for name in table.column_names:
        column = column_of(name)
        assert column is not None
        spec = COLUMNS[column]
        if column in tokens or column in scalars:
            problems.append(Problem(file, None, f"{name} and {column} are the same column: {name} not used"))
            continue
        try:
            array = table[name].combine_chunks()
            if spec.over == "tokens":
                tokens[column] = _ragged(array, TYPES[spec.numbers])
            else:
                scalars[column] = _scalars(array, spec.numbers)
        except (ValueError, TypeError, pa.ArrowException) as error:
            problems.append(Problem(file, None, f"column {name} is not used: {str(error).splitlines()[0]}"))
    log, found = checked(file, first, tokens, scalars)
    return log, problems + found


def _ragged(array: pa.Array, dtype: type) -> Ragged:
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise ValueError(f"{array.type} where a list of numbers is expected")
    value = array.type.value_type
    if not (pa.types.is_floating(value) or pa.types.is_integer(value) or pa.types.is_boolean(value)):
        raise ValueError(f"{array.type} where a list of numbers is expected")
    lengths = pc.call_function("list_value_length", [array]).fill_null(-1).to_numpy(zero_copy_only=False)
    flat = array.flatten()
    if pa.types.is_boolean(value):
        flat = flat.cast(pa.int8())
    values = flat.to_numpy(zero_copy_only=False)
    if dtype is not np.float32 and values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ValueError("a null among its integers")
        if (values != np.trunc(values)).any():
            raise ValueError("numbers that are not whole")
    return Ragged(values.astype(dtype, copy=False), lengths.astype(np.int64))


def _scalars(array: pa.Array, numbers: str) -> np.ndarray:
    if pa.types.is_dictionary(array.type):
        names = [*array.dictionary.cast(pa.string()).to_pylist(), None]
        rows = array.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
        return np.array(names, object)[rows]
    if numbers == "text":
        return np.array(array.cast(pa.string()).to_pylist(), object)
    values = array.to_numpy(zero_copy_only=False).astype(np.float64)
    return values if numbers == "float" or not np.isfinite(values).all() else values.astype(np.int64)


def _json_lines(file: Path) -> Iterator[Part]:
    rows: list[tuple[int, dict[str, Any]]] = []
    problems: list[Problem] = []
    with open(file, "rb") as lines:
        number = 0
        while line := lines.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                problems.append(
                    Problem(file.name, number, f"over {LONGEST_LINE:,} bytes; the rest is not read")
                )
                break
            if line.strip():
                row = _row(line)
                if isinstance(row, str):
                    problems.append(Problem(file.name, number, row))
                else:
                    rows.append((number, row))
    if not rows:
        yield None, problems
        return
    yield None, problems
    # The columns are those that most rows have; rows go to `checked` one by one, to keep their numbers.
    counts = Counter(name for _, row in rows for name in row)
    names = [name for name, count in counts.items() if 2 * count >= len(rows)]
    for number, row in rows:
        absent = [name for name in names if name not in row]
        if absent:
            yield None, [Problem(file.name, number, f"no {absent[0]}")]
            continue
        tokens = {
            name: Ragged(row[name], np.array([len(row[name])]))
            for name in names
            if COLUMNS[name].over == "tokens"
        }
        scalars = {name: row[name] for name in names if COLUMNS[name].over == "sequence"}
        yield checked(file.name, number, tokens, scalars)


def _row(line: bytes) -> dict[str, Any] | str:
    """The known columns of a line as arrays, or what is wrong with it."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"no JSON ({str(error)[:100]})"
    if not isinstance(row, dict):
        return "no JSON object"
    found = {}
    for name, value in row.items():
        column = column_of(name)
        if column is None or value is None:
            continue
        spec = COLUMNS[column]
        try:
            if spec.numbers == "text":
                found[column] = np.array([str(value)], object)
                continue
            values = np.array(value, np.float32 if spec.numbers == "float" else np.float64)
        except (ValueError, TypeError, OverflowError):
            return f"{name} does not hold numbers"
        if values.ndim != (1 if spec.over == "tokens" else 0):
            return f"{name} is not {'a list of numbers' if spec.over == 'tokens' else 'one number'}"
        if spec.numbers.startswith("int") and np.isfinite(values).all():
            if (values != np.trunc(values)).any() or np.abs(values).max(initial=0) >= 2**53:
                return f"{name} does not hold whole numbers"
            values = values.astype(np.int64)
        found[column] = np.atleast_1d(values)
    return found


def _torch(file: Path) -> Iterator[Part]:
    tokens, scalars, problems = read_slime(file)
    log, found = checked(file.name, 1, tokens, scalars)
    yield log, problems + found


READERS: dict[str, Callable[[Path], Iterator[Part]]] = {
    ".parquet": _parquet,
    ".jsonl": _json_lines,
    ".pt": _torch,
}
