"""Read a log of any framework from a file or a directory; report and skip broken rows."""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simlab.core.json_value import Json
from simlab.diagnosis.log import OVER_TOKENS, Problem, TokenLog, list_regular_files, printable
from simlab.diagnosis.padding import drop_padding
from simlab.diagnosis.rows import EXPERTS, MAX_TOKENS, Ragged, check_rows, join_logs
from simlab.diagnosis.schema import BROADCAST, COLUMNS, explain_missing, find_column
from simlab.diagnosis.slime import read_slime

MAX_LINE_BYTES = 2**27
MAX_KEYS = 200
MAX_REPORTED_ROWS = 20
"""Number of broken rows of a file that are reported one by one."""
PICKLES = (".pkl", ".pickle")
REQUIRED = {name for name, spec in COLUMNS.items() if spec.required}
TYPES = {"float": np.float32, "int": np.int64, "int16": np.int16, "text": object}
Part = tuple[TokenLog | None, list[Problem]]


class ReadResult(NamedTuple):
    """A log, the skipped rows and columns, and its files."""

    log: TokenLog
    problems: list[Problem]
    files: list[str]


def read_log(path: Path, rename: Mapping[str, str] | None = None) -> ReadResult:
    """Return the token-level log in `path`: a file, or all logs of a directory and its subdirectories.

    Reads Parquet and JSON lines with `schema.COLUMNS`, and `.pt` of slime's `--save-debug-train-data`.
    `rename` maps names in the files to columns.

    Raises:
        FileNotFoundError: `path` has no log.
        ValueError: No row of the log is usable.
    """
    parts, problems = [], []
    files = list_files(path)
    tokens = 0
    for file in files:
        file_problems = []
        for log, row_problems in _read(file, rename or {}):
            file_problems += row_problems
            if log is None:
                continue
            parts.append((file.name, _number_step(log, file)))
            tokens += len(log.logp_train)
            if tokens > MAX_TOKENS:
                raise ValueError(f"A log must have at most {MAX_TOKENS:,} tokens: pass fewer files.")
        problems += _shorten(file.name, file_problems)
    if not parts:
        reasons = "; ".join(map(str, problems[:3])) or "no token-level log"
        raise ValueError(printable(f"{path} must have a usable log, got: {reasons}"))
    log, join_problems = join_logs(parts)
    log, padded = drop_padding(log, path.name)
    return ReadResult(log, problems + join_problems + padded, [file.name for file in files])


def _shorten(file: str, problems: list[Problem]) -> list[Problem]:
    """Return the first `MAX_REPORTED_ROWS` problems of a file, and the number of the others."""
    more = len(problems) - MAX_REPORTED_ROWS
    rest = [Problem(file, None, f"{more} more rows are unusable")] if more > 0 else []
    return problems[:MAX_REPORTED_ROWS] + rest


def _number_step(log: TokenLog, file: Path) -> TokenLog:
    """Take the step from the file's name or its directory's if the file has no steps."""
    number = re.search(r"step_?(\d{1,15})", file.stem) or re.search(r"step_?(\d{1,15})", file.parent.name)
    if number is None or log.step.any():
        return log
    return replace(log, step=np.full(log.num_sequences, int(number[1])))


def list_files(path: Path) -> list[Path]:
    """Return the token-level logs of a path; raises as `read_log` does."""
    if path.is_dir():
        files = [file for file in list_regular_files(path) if file.suffix in READERS]
        if not files:
            refused = next((name.name for name in sorted(path.rglob("*")) if name.suffix in PICKLES), None)
            more = f" {refused}: a pickle can run code and is not read." if refused else ""
            raise FileNotFoundError(
                f"{path} must have a log: a file that ends in {', '.join(READERS)}.{more}"
            )
        return files
    if not path.is_file():
        state = "is not a regular file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"{path} {state}.")
    if path.suffix in PICKLES:
        raise ValueError(f"{path.name}: a pickle can run code and is not read. Write Parquet or JSON lines.")
    if path.suffix not in READERS:
        raise ValueError(
            f"Log file must end in {', '.join(READERS)} or be a file of curves, got {path.name}."
        )
    return [path]


def _read(file: Path, rename: Mapping[str, str]) -> Iterator[Part]:
    """Yield the parts of a file; an error of the format ends this file only."""
    try:
        yield from READERS[file.suffix](file, rename)
    except (ValueError, OSError, pa.ArrowException, MemoryError, OverflowError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        yield None, [Problem(file.name, None, text.removeprefix(f"{file.name}: ")[:300])]


def _read_parquet(file: Path, rename: Mapping[str, str]) -> Iterator[Part]:
    # Dictionary-encoded text takes the memory of its dictionary, not of its rows.
    texts = [field.name for field in pq.read_schema(file) if pa.types.is_string(field.type)]
    with pq.ParquetFile(file, read_dictionary=texts) as source:
        columns = {name: find_column(name, rename) for name in source.schema_arrow.names}
        wanted = [name for name, column in columns.items() if column]
        twice = [name for name, count in Counter(source.schema_arrow.names).items() if count > 1]
        if twice:
            raise ValueError(f"column {printable(twice[0])} occurs twice")
        if not set(columns.values()) >= REQUIRED:
            raise ValueError(explain_missing(source.schema_arrow.names, rename))
        _check_size(source.metadata, wanted, rename)
        first = 1
        for index in range(source.metadata.num_row_groups):
            rows = source.metadata.row_group(index).num_rows
            try:
                table = source.read_row_group(index, columns=wanted)
            except (OSError, pa.ArrowException) as error:
                reason = f"unreadable to row {first + rows - 1}: {str(error).splitlines()[0][:200]}"
                yield None, [Problem(file.name, first, reason)]
            else:
                yield _check_table(file.name, first, table, rename)
            first += rows


def _check_size(metadata: pq.FileMetaData, wanted: list[str], rename: Mapping[str, str]) -> None:
    """Reject columns too large for memory before reading them: compression can hide their size."""
    claimed = dict.fromkeys(wanted, 0)
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for position in range(group.num_columns):
            column = group.column(position)
            name = column.path_in_schema.split(".")[0]
            if name in claimed:
                claimed[name] += column.num_values
    for name, values in claimed.items():
        if values > MAX_TOKENS and find_column(name, rename) not in EXPERTS:
            raise ValueError(f"column {name} must have at most {MAX_TOKENS:,} values, got {values:,}")
    # 8 bytes while reading, and 2 to 4 afterwards.
    size, free = 12 * sum(claimed.values()), _free_memory()
    if size > free:
        raise ValueError(f"columns need {size / 2**30:.3g} GiB of memory, {free / 2**30:.3g} GiB are free")


def _free_memory() -> float:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return math.inf


def _check_table(file: str, first: int, table: pa.Table, rename: Mapping[str, str]) -> Part:
    tokens, scalars, problems = {}, {}, []
    for name in table.column_names:
        column = find_column(name, rename)
        assert column is not None
        spec = COLUMNS[column]
        if column in tokens or column in scalars:
            problems.append(Problem(file, None, f"{name} duplicates {column}: ignored"))
            continue
        try:
            array = table[name].combine_chunks()
            if column in BROADCAST and not pa.types.is_nested(array.type):
                values = _read_scalars(array, "float").astype(np.float32)
                tokens[column] = Ragged(values, np.ones(len(values), np.int64))
            elif spec.over == "tokens":
                tokens[column] = _read_ragged(array, TYPES[spec.numbers])
            else:
                scalars[column] = _read_scalars(array, spec.numbers)
        except (ValueError, TypeError, pa.ArrowException) as error:
            problems.append(Problem(file, None, f"column {name} ignored: {str(error).splitlines()[0]}"))
    log, row_problems = check_rows(file, first, tokens, scalars)
    return log, problems + row_problems


def _read_ragged(array: pa.Array, dtype: type) -> Ragged:
    is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    value = array.type.value_type if is_list else pa.null()
    if not (pa.types.is_floating(value) or pa.types.is_integer(value) or pa.types.is_boolean(value)):
        raise ValueError(f"values must be lists of numbers, got {array.type}")
    lengths = pc.call_function("list_value_length", [array]).fill_null(-1).to_numpy(zero_copy_only=False)
    flat = array.flatten()
    if pa.types.is_boolean(value):
        flat = flat.cast(pa.int8())
    values = flat.to_numpy(zero_copy_only=False)
    if dtype is not np.float32 and values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ValueError("integers must not be null")
        if (values != np.trunc(values)).any():
            raise ValueError("values must be integers")
    return Ragged(values.astype(dtype, copy=False), lengths.astype(np.int64))


def _read_scalars(array: pa.Array, numbers: str) -> np.ndarray:
    if pa.types.is_dictionary(array.type):
        names = [*array.dictionary.cast(pa.string()).to_pylist(), None]
        rows = array.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
        return np.array(names, object)[rows]
    if numbers == "text":
        return np.array(array.cast(pa.string()).to_pylist(), object)
    values = array.to_numpy(zero_copy_only=False).astype(np.float64)
    return values if numbers == "float" or not np.isfinite(values).all() else values.astype(np.int64)


def _read_json_lines(file: Path, rename: Mapping[str, str]) -> Iterator[Part]:
    rows: dict[int, dict[str, np.ndarray]] = {}
    problems: list[Problem] = []
    keys: dict[str, None] = {}
    for number, line in _read_lines(file, problems):
        try:
            rows[number] = _parse_row(line, rename, keys)
        except ValueError as error:
            problems.append(Problem(file.name, number, str(error)))
    if not rows and not problems:
        raise ValueError("the file has no rows")
    yield None, problems
    if not rows:
        return
    complete = [row for row in rows.values() if row.keys() >= REQUIRED]
    if not complete:
        raise ValueError(explain_missing(keys, rename))
    # The columns are those of most usable rows. Checking row by row keeps the row numbers.
    counts = Counter(name for row in complete for name in row)
    names = [name for name, count in counts.items() if 2 * count >= len(complete)]
    for number, row in rows.items():
        absent = [name for name in names if name not in row]
        if absent:
            yield None, [Problem(file.name, number, f"no {absent[0]}")]
            continue
        scalars = {name: row[name] for name in names if name not in OVER_TOKENS}
        tokens = {
            name: Ragged(row[name], np.array([len(row[name])])) for name in names if name in OVER_TOKENS
        }
        yield check_rows(file.name, number, tokens, scalars)


def _read_lines(file: Path, problems: list[Problem]) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the text of each line with text; a line that is too long ends the file."""
    with open(file, "rb") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE_BYTES), b""), start=1):
            if len(line) == MAX_LINE_BYTES:
                reason = f"over {MAX_LINE_BYTES:,} bytes; the rest is skipped"
                problems.append(Problem(file.name, number, reason))
                return
            if line.strip():
                yield number, line


def _parse_row(line: bytes, rename: Mapping[str, str], keys: dict[str, None]) -> dict[str, np.ndarray]:
    """Return the known columns of a line as arrays, and add its names to `keys`.

    Raises:
        ValueError: The reason to skip the row.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({str(error)[:100]})") from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    if len(keys) < MAX_KEYS:
        keys |= dict.fromkeys(row)
    is_nemo = "generation_logprobs" in row
    columns = {}
    for name, value in row.items():
        column = find_column(name, rename)
        if column is None or value is None:
            continue
        # NeMo-RL writes one sample a line, each value in a list of one.
        if is_nemo and isinstance(value, list) and len(value) == 1:
            value = value[0]
        columns[column] = _parse_value(name, column, value)
    if is_nemo and "mask" in columns and row.get("sample_loss_mask") in (0, 0.0, [0], [0.0]):
        columns["mask"] = np.zeros_like(columns["mask"])
    return columns


def _parse_value(name: str, column: str, value: Json) -> np.ndarray:
    spec = COLUMNS[column]
    try:
        if spec.numbers == "text":
            return np.array([str(value)], object)
        values = np.array(value, np.float32 if spec.numbers == "float" else np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{name} is not numeric") from error
    if values.ndim != (1 if spec.over == "tokens" else 0) and (values.ndim or column not in BROADCAST):
        kind = "a list of numbers" if spec.over == "tokens" else "one number"
        raise ValueError(f"{name} is not {kind}")
    if spec.numbers.startswith("int") and np.isfinite(values).all():
        if (values != np.trunc(values)).any() or np.abs(values).max(initial=0) >= 2**53:
            raise ValueError(f"{name} has values that are not integers")
        values = values.astype(np.int64)
    return np.atleast_1d(values)


def _read_torch(file: Path, _: Mapping[str, str]) -> Iterator[Part]:
    tokens, scalars, problems = read_slime(file)
    log, row_problems = check_rows(file.name, 1, tokens, scalars)
    yield log, problems + row_problems


READERS: dict[str, Callable[[Path, Mapping[str, str]], Iterator[Part]]] = {
    ".parquet": _read_parquet,
    ".jsonl": _read_json_lines,
    ".pt": _read_torch,
}
