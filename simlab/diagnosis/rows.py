"""Check the rows of a file one by one: valid rows become a `TokenLog`, the others are reported."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from simlab.diagnosis.log import LOWEST, Problem, TokenLog
from simlab.diagnosis.schema import BROADCAST, COLUMNS, RECORD_NAMES, explain_missing

MAX_TOKENS = 10**8
"""Maximum number of tokens of a log; the derived arrays of more would not fit into memory."""

MAX_DROPPED_FRACTION = 0.1
"""Maximum fraction of the sequences that are dropped because their files lack a column."""

MAX_LOGP = 1e-3
"""Largest valid log-probability: zero plus round-off."""
LOGPS = ("logp_train", "logp_infer", "logp")
EXPERTS = ("experts_train", "experts_infer")


class Ragged(NamedTuple):
    """Lists of different lengths: concatenated `values` and the `lengths` per row (-1: no list)."""

    values: np.ndarray
    lengths: np.ndarray


def check_rows(
    file: str, first: int, tokens: Mapping[str, Ragged], scalars: Mapping[str, np.ndarray]
) -> tuple[TokenLog | None, list[Problem]]:
    """Return the valid rows as a log (None without any), and the reason for each other row.

    The reasons contain `file` and row numbers from `first` on. `tokens` are columns over tokens,
    `scalars` over sequences.
    """
    if any(spec.required and name not in tokens for name, spec in COLUMNS.items()):
        return None, [Problem(file, None, explain_missing([*tokens, *scalars]))]
    lengths = tokens["logp_train"].lengths
    tokens = {name: _broadcast(name, column, lengths) for name, column in tokens.items()}
    reasons = np.full(len(lengths), "", object)
    _check_lengths(reasons, tokens)
    _check_values(reasons, tokens)
    for name, values in scalars.items():
        if values.dtype.kind == "f":
            _set_reason(reasons, ~np.isfinite(values), lambda row, v=values, n=name: f"{n} is {v[row]}")
    good = reasons == ""
    bad = np.flatnonzero(~good)
    problems = [Problem(file, first + int(row), str(reasons[row])) for row in bad]
    return (_build_log(good, tokens, scalars) if good.any() else None), problems


def _broadcast(name: str, column: Ragged, lengths: np.ndarray) -> Ragged:
    """Repeat one advantage or weight per sequence for its tokens."""
    if name not in BROADCAST or not (column.lengths == 1).all() or len(column.lengths) != len(lengths):
        return column
    return Ragged(np.repeat(column.values, np.maximum(lengths, 0)), lengths)


def _set_reason(reasons: np.ndarray, rows: np.ndarray, why) -> None:
    for row in np.flatnonzero(rows & (reasons == "")):
        reasons[row] = why(row)


def _check_lengths(reasons: np.ndarray, tokens: Mapping[str, Ragged]) -> None:
    lengths = tokens["logp_train"].lengths
    _set_reason(reasons, lengths < 0, lambda _: "logp_train is missing")
    _set_reason(reasons, lengths == 0, lambda _: "logp_train is empty")
    for name, column in tokens.items():
        width = _width(column, lengths) if name in EXPERTS else 1
        _set_reason(
            reasons,
            column.lengths != lengths * width,
            lambda row, n=name, c=column, w=width: (
                f"{n} is missing"
                if c.lengths[row] < 0
                else f"{n} must have {lengths[row] * w} entries, got {c.lengths[row]}"
            ),
        )


def _width(column: Ragged, lengths: np.ndarray) -> int:
    """Return the number of experts per token in the first row that has experts."""
    usable = np.flatnonzero((lengths > 0) & (column.lengths > 0))
    return max(1, int(column.lengths[usable[0]] // lengths[usable[0]])) if len(usable) else 1


def _check_values(reasons: np.ndarray, tokens: Mapping[str, Ragged]) -> None:
    masks = tokens.get("mask")
    for name in (*LOGPS, "advantages", "is_weight"):
        column = tokens.get(name)
        if column is None:
            continue
        with np.errstate(invalid="ignore"):
            fine = column.values <= MAX_LOGP if name in LOGPS else np.isfinite(column.values)
        if fine.all():
            continue
        if masks is not None and len(masks.values) == len(column.values):
            fine |= masks.values == 0
        starts = np.concatenate(([0], np.cumsum(np.maximum(column.lengths, 0))))
        wrong = np.flatnonzero(~fine)
        rows, firsts = np.unique(np.searchsorted(starts, wrong, side="right") - 1, return_index=True)
        limit = "; log-probs must be at most 0" if name in LOGPS else ""
        for row, place in zip(rows, wrong[firsts], strict=True):
            token = place - starts[row] + 1
            reasons[row] = reasons[row] or f"{name} is {column.values[place]:g} at token {token}{limit}"


def _build_log(good: np.ndarray, tokens: Mapping[str, Ragged], scalars: Mapping[str, np.ndarray]) -> TokenLog:
    lengths = tokens["logp_train"].lengths[good].astype(np.int64)
    columns: dict[str, np.ndarray] = {}
    for name, column in tokens.items():
        selected = column.values[np.repeat(good, np.maximum(column.lengths, 0))]
        if name in EXPERTS:
            selected = selected.reshape(int(lengths.sum()), -1)
        columns[name] = selected
    for name in LOGPS:
        if name in columns:
            # Masked positions may have any value.
            clean = np.nan_to_num(columns[name], nan=0.0, neginf=LOWEST, posinf=0.0)
            columns[name] = np.clip(clean, LOWEST, 0.0).astype(np.float32)
    columns["mask"] = columns["mask"] != 0 if "mask" in columns else np.ones(int(lengths.sum()), bool)
    for name, values in scalars.items():
        columns[RECORD_NAMES.get(name, name)] = values[good]
    columns.setdefault("step", np.zeros(len(lengths), np.int64))
    top_k = columns.pop("top_k", None)
    width = next((columns[name].shape[1] for name in EXPERTS if name in columns), 1)
    logged = int(top_k[0]) if top_k is not None else 1
    return TokenLog(lengths=lengths, top_k=logged if logged > 0 and width % logged == 0 else 1, **columns)


NamedLog = tuple[str, TokenLog]


def join_logs(parts: Sequence[NamedLog]) -> tuple[TokenLog, list[Problem]]:
    """Concatenate the logs of several files; also return the skipped files and columns.

    A column that some files lack is dropped. Instead, the files are dropped if they have less than
    `MAX_DROPPED_FRACTION` of the sequences.
    """
    parts, problems = _drop_incomplete_logs(parts)
    logs, columns = [log for _, log in parts], {}
    for field in fields(TokenLog):
        values = [getattr(log, field.name) for log in logs]
        if field.name == "top_k":
            continue
        lacking = [name for (name, _), value in zip(parts, values, strict=True) if value is None]
        if not lacking and field.name in EXPERTS and len({value.shape[1] for value in values}) > 1:
            problems.append(Problem(parts[0][0], None, f"{field.name}: files differ in experts per token"))
        elif not lacking:
            columns[field.name] = np.concatenate(values)
        elif len(lacking) < len(values):
            problems.append(Problem(lacking[0], None, f"{field.name} is missing: ignored in all files"))
    if any(name in columns for name in EXPERTS) and len({log.top_k for log in logs}) > 1:
        problems.append(Problem(parts[0][0], None, "files differ in top_k: experts ignored"))
        columns = {name: values for name, values in columns.items() if name not in EXPERTS}
    log = TokenLog(top_k=logs[0].top_k, **columns)
    return _number_groups(log), problems


def _drop_incomplete_logs(parts: Sequence[NamedLog]) -> tuple[list[NamedLog], list[Problem]]:
    """Drop the few logs without a column that nearly all have."""
    sequences = np.array([log.num_sequences for _, log in parts])
    dropped, problems = np.zeros(len(parts), bool), []
    for field in fields(TokenLog):
        lacking = np.array([getattr(log, field.name) is None for _, log in parts])
        if 0 < sequences[lacking].sum() < MAX_DROPPED_FRACTION * sequences.sum():
            names = dict.fromkeys(parts[index][0] for index in np.flatnonzero(lacking & ~dropped).tolist())
            problems += [Problem(name, None, f"{field.name} is missing: file skipped") for name in names]
            dropped |= lacking
    return [part for part, is_dropped in zip(parts, dropped, strict=True) if not is_dropped], problems


def _number_groups(log: TokenLog) -> TokenLog:
    """Replace group names by numbers; the same name in two steps is two groups."""
    if log.group is None:
        return log
    numbers: dict[tuple[int, str], int] = {}
    rows = zip(log.step.tolist(), log.group.tolist(), strict=True)
    group = [numbers.setdefault((step, str(name)), len(numbers)) for step, name in rows]
    return replace(log, group=np.array(group))
