"""Rows of a file, checked one by one: what is sound becomes a `TokenLog`, the rest is named."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from simlab.diagnosis.log import LOWEST, OVER_TOKENS, Problem, TokenLog
from simlab.diagnosis.schema import COLUMNS, RECORD_NAMES

MAX_TOKENS = 10**8
"""Tokens in one log; more would not fit beside what is computed from them."""

STRANGE = 0.1
"""Share of the sequences that may go because their files lack a column."""

NAMED = 20
"""Bad rows of a file that are named one by one."""

# A log-probability above zero by more than round-off is not one.
ABOVE_ZERO = 1e-3
LOGPS = ("logp_train", "logp_infer", "logp")
EXPERTS = ("experts_train", "experts_infer")


class Ragged(NamedTuple):
    """Lists of different lengths: `values` one after another, and `lengths` per row (-1: no list)."""

    values: np.ndarray
    lengths: np.ndarray


def checked(
    file: str, first: int, tokens: Mapping[str, Ragged], scalars: Mapping[str, np.ndarray]
) -> tuple[TokenLog | None, list[Problem]]:
    """Return the sound rows as a log (None without any), and the others with their reasons.

    `first` is the number of the first row. `tokens` and `scalars` have the columns that the file has.
    """
    missing = [name for name, spec in COLUMNS.items() if spec.required and name not in tokens]
    if missing:
        reason = f"no column {' or '.join(_names(missing[0]))}"
        return None, [Problem(file, None, reason)]
    lengths = tokens["logp_train"].lengths
    reasons = np.full(len(lengths), "", object)
    _check_lengths(reasons, tokens)
    _check_values(reasons, tokens)
    for name, values in scalars.items():
        if values.dtype.kind == "f":
            _blame(reasons, ~np.isfinite(values), lambda row, v=values, n=name: f"{n} is {v[row]}")
    good = reasons == ""
    bad = np.flatnonzero(~good)
    problems = [Problem(file, first + int(row), str(reasons[row])) for row in bad[:NAMED]]
    if len(bad) > NAMED:
        problems.append(Problem(file, None, f"{len(bad) - NAMED} more rows are unusable"))
    return (_log(good, tokens, scalars) if good.any() else None), problems


def _names(column: str) -> tuple[str, ...]:
    return (column, *COLUMNS[column].aliases)


def _blame(reasons: np.ndarray, rows: np.ndarray, why) -> None:
    for row in np.flatnonzero(rows & (reasons == "")):
        reasons[row] = why(row)


def _check_lengths(reasons: np.ndarray, tokens: Mapping[str, Ragged]) -> None:
    lengths = tokens["logp_train"].lengths
    _blame(reasons, lengths < 0, lambda _: "logp_train is missing")
    _blame(reasons, lengths == 0, lambda _: "logp_train is empty")
    for name, column in tokens.items():
        if name in EXPERTS:
            width = _width(column, lengths)
            wrong = column.lengths != lengths * width
        else:
            width, wrong = 1, column.lengths != lengths
        _blame(
            reasons,
            wrong,
            lambda row, n=name, c=column, w=width: (
                f"{n} is missing"
                if c.lengths[row] < 0
                else f"{n} has {c.lengths[row]} entries, logp_train {lengths[row]}"
                + (f" with {w} experts each" if n in EXPERTS else "")
            ),
        )


def _width(column: Ragged, lengths: np.ndarray) -> int:
    """Experts of a token, by the first row that has any."""
    usable = np.flatnonzero((lengths > 0) & (column.lengths > 0))
    return max(1, int(column.lengths[usable[0]] // lengths[usable[0]])) if len(usable) else 1


def _check_values(reasons: np.ndarray, tokens: Mapping[str, Ragged]) -> None:
    masks = tokens.get("mask")
    for name in (*LOGPS, "advantages"):
        column = tokens.get(name)
        if column is None:
            continue
        with np.errstate(invalid="ignore"):
            fine = column.values <= ABOVE_ZERO if name in LOGPS else np.isfinite(column.values)
        if fine.all():
            continue
        if masks is not None and len(masks.values) == len(column.values):
            fine |= masks.values == 0
        starts = np.concatenate(([0], np.cumsum(np.maximum(column.lengths, 0))))
        row_of = np.searchsorted(starts, np.flatnonzero(~fine), side="right") - 1
        wrong = np.zeros(len(reasons), bool)
        wrong[row_of] = True

        def why(row: int, n: str = name, c: Ragged = column, f: np.ndarray = fine, s: np.ndarray = starts):
            token = int(np.flatnonzero(~f[s[row] : s[row + 1]])[0])
            return f"{n} is {c.values[s[row] + token]:g} at token {token + 1}"

        _blame(reasons, wrong, why)


def _log(good: np.ndarray, tokens: Mapping[str, Ragged], scalars: Mapping[str, np.ndarray]) -> TokenLog:
    lengths = tokens["logp_train"].lengths[good].astype(np.int64)
    found: dict[str, np.ndarray] = {}
    for name, column in tokens.items():
        kept = column.values[np.repeat(good, np.maximum(column.lengths, 0))]
        if name in EXPERTS:
            kept = kept.reshape(int(lengths.sum()), -1)
        found[name] = kept
    for name in LOGPS:
        if name in found:
            # Masked positions may hold anything.
            clean = np.nan_to_num(found[name], nan=0.0, neginf=LOWEST, posinf=0.0)
            found[name] = np.clip(clean, LOWEST, 0.0).astype(np.float32)
    found["mask"] = found["mask"] != 0 if "mask" in found else np.ones(int(lengths.sum()), bool)
    for name, values in scalars.items():
        found[RECORD_NAMES.get(name, name)] = values[good]
    found.setdefault("step", np.zeros(len(lengths), np.int64))
    top_k = found.pop("top_k", None)
    width = next((found[name].shape[1] for name in EXPERTS if name in found), 1)
    given = int(top_k[0]) if top_k is not None else 1
    return TokenLog(lengths=lengths, top_k=given if given > 0 and width % given == 0 else 1, **found)


Part = tuple[str, TokenLog]


def joined(parts: Sequence[Part]) -> tuple[TokenLog, list[Problem]]:
    """Return the logs of several files as one, and what had to be left out.

    Of files that lack a column the fewer go, if they hold less than `STRANGE` of the sequences; else the
    column.
    """
    parts, problems = _without_strangers(parts)
    logs, found = [log for _, log in parts], {}
    for field in fields(TokenLog):
        values = [getattr(log, field.name) for log in logs]
        if field.name == "top_k":
            continue
        lacking = [name for (name, _), value in zip(parts, values, strict=True) if value is None]
        if not lacking and field.name in EXPERTS and len({value.shape[1] for value in values}) > 1:
            problems.append(Problem(parts[0][0], None, f"{field.name}: files differ in experts per token"))
        elif not lacking:
            found[field.name] = np.concatenate(values)
        elif len(lacking) < len(values):
            problems.append(Problem(lacking[0], None, f"no {field.name}, which other files have: not used"))
    if any(name in found for name in EXPERTS) and len({log.top_k for log in logs}) > 1:
        problems.append(Problem(parts[0][0], None, "files differ in top_k: experts are not used"))
        found = {name: values for name, values in found.items() if name not in EXPERTS}
    log = TokenLog(top_k=logs[0].top_k, **found)
    return _with_group_numbers(log), problems


def _without_strangers(parts: Sequence[Part]) -> tuple[list[Part], list[Problem]]:
    """Leave out the few parts without a column that nearly all have."""
    sequences = np.array([log.sequences for _, log in parts])
    strange, problems = np.zeros(len(parts), bool), []
    for field in fields(TokenLog):
        lacking = np.array([getattr(log, field.name) is None for _, log in parts])
        if 0 < sequences[lacking].sum() < STRANGE * sequences.sum():
            names = dict.fromkeys(parts[index][0] for index in np.flatnonzero(lacking & ~strange).tolist())
            problems += [Problem(name, None, f"no {field.name}: left out") for name in names]
            strange |= lacking
    return [part for part, left_out in zip(parts, strange, strict=True) if not left_out], problems


def _with_group_numbers(log: TokenLog) -> TokenLog:
    """Groups as numbers; the same name in two steps is two groups."""
    if log.group is None:
        return log
    numbers: dict[tuple[int, str], int] = {}
    rows = zip(log.step.tolist(), log.group.tolist(), strict=True)
    group = [numbers.setdefault((step, str(name)), len(numbers)) for step, name in rows]
    return replace(log, group=np.array(group))


assert {name for name, spec in COLUMNS.items() if spec.over == "tokens"} == OVER_TOKENS
