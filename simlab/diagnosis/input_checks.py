"""Reject inputs without information before the diagnosis; warn of logs with little information."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from simlab.diagnosis.log import LOWEST, Problem, TokenLog, printable
from simlab.diagnosis.log_reader import MAX_LINE_BYTES, list_files

MAX_ZERO_FRACTION = 0.01
"""Fraction of the tokens with probability 0 in the inference engine from which on a warning names them."""
MAX_LISTED = 40
COPIED = (
    "logp_train and logp_infer are equal bit for bit at all {tokens:,} tokens. Either the engines are "
    "bitwise identical, or the log-probs were copied (verl: algorithm.rollout_correction.bypass_mode=True). "
    "A log of copies has no information about the engines."
)


def check_paths(paths: Sequence[Path], rename: Mapping[str, str]) -> None:
    """Raise `ValueError` for an empty file and for a name in `rename` that no file has."""
    for path in paths:
        if path.is_file() and path.stat().st_size == 0:
            raise ValueError(f"{path} is empty.")
    if not rename:
        return
    files = [file for path in paths for file in list_files(path)]
    unused = dict.fromkeys(rename)
    for file in files:
        for name in _find_names(file, tuple(unused)):
            unused.pop(name, None)
    if unused:
        columns = ", ".join(islice(_list_columns(files[0]), MAX_LISTED)) or "none"
        message = f"--rename must name columns of the files, got {', '.join(unused)}. "
        raise ValueError(printable(f"{message}Columns of {files[0].name}: {columns}."))


def _find_names(file: Path, names: Sequence[str]) -> set[str]:
    """Return the `names` that a file has. JSON lines are searched as text, because every row may differ."""
    if file.suffix != ".jsonl":
        return set(_list_columns(file)) & set(names)
    spellings = {
        name: {json.dumps(name, ensure_ascii=plain).encode() for plain in (False, True)} for name in names
    }
    occurring: set[str] = set()
    with open(file, "rb") as lines:
        while len(occurring) < len(names) and (line := lines.readline(MAX_LINE_BYTES)):
            occurring |= {name for name in names if any(text in line for text in spellings[name])}
    return occurring


def _list_columns(file: Path) -> Iterator[str]:
    """Yield the columns of a Parquet file, or of the first line of JSON lines; none of a broken file."""
    try:
        if file.suffix == ".parquet":
            yield from pq.read_schema(file).names
        elif file.suffix == ".jsonl":
            with open(file, "rb") as lines:
                yield from map(str, dict(json.loads(lines.readline(MAX_LINE_BYTES))))
    except (ValueError, TypeError, OSError, RecursionError, pa.ArrowException):
        return


def check_usable(log: TokenLog, path: Path, problems: Sequence[Problem]) -> None:
    """Raise `ValueError` for a log without tokens to train on, or without their probabilities."""
    tokens, reason = len(log.mask), "".join(f" {problem}." for problem in problems[:1])
    if not log.mask.any():
        raise ValueError(
            f"{path} must have tokens that are trained on, got {tokens:,}, all of them masked or "
            f"padding.{reason}"
        )
    for name in ("logp_infer", "logp_train"):
        if (getattr(log, name)[log.mask] <= LOWEST).all():
            raise ValueError(
                f"{path}: {name} must be the log-probs of the sampled tokens, got -inf or at most {LOWEST:g} "
                f"nats at all {log.mask.sum():,} tokens that are trained on."
            )


def find_warnings(log: TokenLog) -> list[str]:
    """Return warnings about a log without masked tokens."""
    if not len(log.logp_infer):
        return ["no token is trained on: all tokens are masked"]
    warnings = []
    if np.array_equal(log.logp_train, log.logp_infer):
        warnings.append(COPIED.format(tokens=len(log.logp_infer)))
    zero = float(np.mean(log.logp_infer <= LOWEST))
    if zero > MAX_ZERO_FRACTION:
        warnings.append(
            f"logp_infer is -inf or at most {LOWEST:g} nats at {zero:.0%} of the tokens. An engine cannot "
            "sample a token of probability 0: check what was logged."
        )
    return warnings
