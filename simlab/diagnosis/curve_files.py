"""Find and open files of averages per step: TRL's state, CSV, JSON, TensorBoard's and trackio's files."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

from simlab.core.json_value import Json
from simlab.diagnosis.curve_names import CURVES, has_level
from simlab.diagnosis.event_file import MARK, read_event_file
from simlab.diagnosis.log import Problem, list_regular_files
from simlab.diagnosis.trackio_file import SUFFIX, read_trackio_file

STATE_FILE = "trainer_state.json"
TOKEN_SUFFIXES = (".parquet", ".pt")


def find_curves(path: Path) -> list[Path]:
    """Return the files with curves, [] without any or next to token logs.

    From a directory: the newest TRL state, or the exported curves. Directories with event files are separate
    runs; only the newest is read. Empty files, of runs that have just started, are skipped.
    """
    if path.is_file():
        return [path] if _is_curve(path) else []
    if not path.is_dir():
        return []
    files = [file for file in list_regular_files(path) if file.stat().st_size]
    folders = {path, *path.glob("checkpoint-*")}
    states = [file for file in files if file.name == STATE_FILE and file.parent in folders]
    if states:
        return [max(states, key=lambda file: file.stat().st_mtime)]
    lines = [file for file in files if file.suffix == ".jsonl"]
    if any(file.suffix in TOKEN_SUFFIXES for file in files) or not all(map(_is_curve, lines)):
        return []
    curves = [file for file in files if file.suffix in (".csv", ".jsonl", SUFFIX)]
    events = [file for file in files if MARK in file.name]
    if events:
        newest = max(events, key=lambda file: file.stat().st_mtime).parent
        curves += [file for file in events if file.parent == newest]
    return curves


def _is_curve(path: Path) -> bool:
    if path.name == STATE_FILE or path.suffix in (".csv", SUFFIX) or MARK in path.name:
        return True
    if path.suffix not in (".json", ".jsonl"):
        return False
    with open(path, "rb") as file:
        return has_level(file.read(2**16).decode(errors="replace"))


def read_entries(file: Path, problems: list[Problem]) -> Iterator[Json]:
    """Yield the entries of a file, dicts if they are well-formed; add broken ones to `problems`."""
    if MARK in file.name:
        yield from read_event_file(file, problems)
    elif file.suffix == SUFFIX:
        yield from read_trackio_file(file, problems)
    elif file.suffix == ".csv":
        yield from _read_csv(file, problems)
    elif file.suffix == ".jsonl":
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
            try:
                yield json.loads(line) if line.strip() else {}
            except (ValueError, RecursionError) as error:
                problems.append(Problem(file.name, number, f"not JSON ({str(error)[:100]})"))
    else:
        yield from _read_history(file.name, file.read_text(errors="replace"), problems)


def _read_csv(file: Path, problems: list[Problem]) -> Iterator[dict[str, str]]:
    with open(file, newline="", errors="replace") as lines:
        try:
            reader = csv.DictReader(lines)
            tag = _tag_of(file) if {"Step", "Value"} <= set(reader.fieldnames or ()) else None
            for entry in reader:
                yield entry | {tag: entry["Value"]} if tag else entry
        except csv.Error as error:
            problems.append(Problem(file.name, None, f"not CSV ({error})"))


def _tag_of(file: Path) -> str | None:
    """Return the curve of TensorBoard's CSV, which has its tag in the file name only."""
    stem = re.sub(r"\W+", "_", file.stem)
    return next((name for name in CURVES if stem.endswith(re.sub(r"\W+", "_", name))), None)


def _read_history(name: str, text: str, problems: list[Problem]) -> list[Json]:
    """Return the entries of a JSON list or of `log_history`; of a truncated file, the complete ones."""
    try:
        content = json.loads(text)
        history = content if isinstance(content, list) else content["log_history"]
    except json.JSONDecodeError as error:
        entries = _parse_before_break(text)
        problems.append(Problem(name, len(entries) + 1, f"the file is truncated ({error.msg})"))
        return entries
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{name} must be the state of a TRL run, got {type(error).__name__}.") from error
    if not isinstance(history, list):
        raise ValueError(f"{name}: log_history must be a list.")
    return history


def _parse_before_break(text: str) -> list[Json]:
    decoder, entries = json.JSONDecoder(), []
    position = text.find("{", text.find('"log_history"')) if '"log_history"' in text else -1
    while position >= 0:
        try:
            entry, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        entries.append(entry)
        position = text.find("{", end)
    return entries
