"""Read averages per step: TRL's `trainer_state.json`, and curves exported from W&B, TensorBoard or trackio.

Averages over tokens cannot tell causes apart: the answer is by size and growth alone, and says so.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simlab.diagnosis.answer import Answer, estimate_confidence, unknown_answer
from simlab.diagnosis.log import Problem, printable

STATE_FILE = "trainer_state.json"
OBJECTIVE_MODIFIERS = (".csv", ".json", ".jsonl")
MAX_BYTES = 2**28
SOURCE = "curve-level: averages per step"

# The frameworks' names -> column. A level is a mean of abs(log rho), or comes from a k3 KL: sqrt(2 k3).
CURVES: dict[str, str] = {
    "sampling/sampling_logp_difference/mean": "mean_abs_log_rho",
    "train/train_rollout_logprob_abs_diff": "mean_abs_log_rho",
    "train_rollout_logprob_abs_diff": "mean_abs_log_rho",
    "policy/rollout_train_logprobs_abs_diff_mean": "mean_abs_log_rho",
    "train/token_mult_prob_error": "mean_exp_abs_log_rho",
    "token_mult_prob_error": "mean_exp_abs_log_rho",
    "rollout_corr/k3_kl": "k3_kl",
    "train/gen_kl_error": "k3_kl",
    "gen_kl_error": "k3_kl",
    "mismatch_kl/all/mean": "k3_kl",
    "train/train_rollout_kl": "k3_kl",
    "sampling/sampling_logp_difference/max": "max_abs_log_rho",
    "sampling/importance_sampling_ratio/mean": "mean_weight",
    "sampling/importance_sampling_ratio/min": "min_weight",
    "sampling/importance_sampling_ratio/max": "max_weight",
    "rollout_corr/rollout_is_mean": "mean_weight",
    "completions/mean_length": "response_length",
    "response_length/mean": "response_length",
    "reward": "reward",
    "critic/score/mean": "reward",
    "entropy": "entropy",
    "actor/entropy": "entropy",
}
LEVELS = ("mean_abs_log_rho", "mean_exp_abs_log_rho", "k3_kl")
STEPS = ("step", "Step", "_step", "global_step", "training/global_step", "train/global_step")
WHAT_TO_LOG = (
    "averages only; write the log-probs of both engines and the token ids of a step to Parquet or JSON lines "
    "to answer the other questions"
)
LIMITS = {"level": 0.8, "growth": 2.5}
BF16, FP8 = 0.05, 0.4
"""Largest mean abs(log rho) that counts as BF16 noise (0.01 measured) and as FP8 noise (0.27 measured)."""
MAX_CONFIDENCE = 0.65


def find_curves(path: Path) -> list[Path]:
    """Return the files with curves: the newest TRL state, or exported CSV files; [] without any."""
    if path.is_file():
        is_curve = path.name == STATE_FILE or path.suffix == ".csv" or _is_json_curve(path)
        return [path] if is_curve else []
    if not path.is_dir():
        return []
    # No links: a link could lead out of the directory.
    states = [
        file
        for file in (path / STATE_FILE, *path.glob(f"checkpoint-*/{STATE_FILE}"))
        if file.is_file() and not file.is_symlink() and (file.parent == path or not file.parent.is_symlink())
    ]
    if states:
        return [max(states, key=lambda file: file.stat().st_mtime)]
    if any(path.rglob("*.parquet")) or any(path.rglob("*.jsonl")) or any(path.rglob("*.pt")):
        return []
    return [file for file in sorted(path.glob("*.csv")) if file.is_file() and not file.is_symlink()]


def _is_json_curve(path: Path) -> bool:
    if path.suffix not in (".json", ".jsonl"):
        return False
    with open(path, "rb") as file:
        start = file.read(2**16).decode(errors="replace")
    return any(f'"{name}"' in start for name, column in CURVES.items() if column in LEVELS)


def read_curves(files: Sequence[Path]) -> tuple[list[dict[str, float]], list[Problem]]:
    """Return one row per step with a level of the mismatch, and the broken entries.

    Raises:
        ValueError: No file has a curve of `CURVES` that measures the mismatch.
    """
    rows: dict[float, dict[str, float]] = {}
    problems: list[Problem] = []
    keys: dict[str, None] = {}
    for file in files:
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"{file.name} must have at most {MAX_BYTES:,} bytes.")
        for number, entry in enumerate(_read_entries(file, problems), start=1):
            if not isinstance(entry, Mapping):
                problems.append(Problem(file.name, number, "not a log entry"))
                continue
            keys |= dict.fromkeys(map(str, list(entry)[:100]))
            row = _read_entry(entry, file.name, number, problems)
            if row:
                rows.setdefault(row["step"], {}).update(row)
    found = [row for _, row in sorted(rows.items()) if np.isfinite(_level(row))]
    if not found:
        reason = f"{problems[0].reason}. " if problems else ""
        wanted = ", ".join(name for name, column in CURVES.items() if column in LEVELS)
        listed = ", ".join(list(keys)[:30])
        message = f"{files[0].name}: {reason}No curve of the mismatch ({wanted}). Found: {listed}."
        raise ValueError(printable(message))
    return [row | {"mean_abs_log_rho": _level(row)} for row in found], problems


def _read_entry(
    entry: Mapping[str, Any], file: str, number: int, problems: list[Problem]
) -> dict[str, float] | None:
    """Return the known columns of an entry; None, with a problem, if a number is broken."""
    columns = {_column_of(str(name)): value for name, value in entry.items()}
    shown = {name: value for name, value in columns.items() if name and value not in (None, "")}
    if not any(name in shown for name in LEVELS):
        return None
    step = next((entry[name] for name in STEPS if entry.get(name) not in (None, "")), number - 1)
    try:
        row = {str(name): float(value) for name, value in shown.items()} | {"step": float(step)}
    except (ValueError, TypeError, OverflowError) as error:
        problems.append(Problem(file, number, f"not a log entry ({str(error)[:100]})"))
        return None
    broken = [name for name in (*LEVELS, "step") if not np.isfinite(row.get(name, 0.0))]
    if broken:
        problems.append(Problem(file, number, f"{broken[0]} is {row[broken[0]]}"))
        return None
    return row


def _column_of(name: str) -> str | None:
    """Return the column of a curve; W&B's export puts the run's name before ` - `."""
    return CURVES.get(name) or CURVES.get(name.rsplit(" - ", 1)[-1])


def _level(row: Mapping[str, float]) -> float:
    if "mean_abs_log_rho" in row:
        return row["mean_abs_log_rho"]
    if "k3_kl" in row:
        return float(np.sqrt(2 * max(0.0, row["k3_kl"])))
    return float(np.log(max(1.0, row["mean_exp_abs_log_rho"]))) if "mean_exp_abs_log_rho" in row else np.nan


def _read_entries(file: Path, problems: list[Problem]) -> Iterator[Any]:
    if file.suffix == ".csv":
        with open(file, newline="", errors="replace") as lines:
            try:
                reader = csv.DictReader(lines)
                tag = _tag_of(file) if {"Step", "Value"} <= set(reader.fieldnames or ()) else None
                for entry in reader:
                    yield entry | {tag: entry["Value"]} if tag else entry
            except csv.Error as error:
                problems.append(Problem(file.name, None, f"not CSV ({error})"))
        return
    text = file.read_text(errors="replace")
    if file.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                yield json.loads(line) if line.strip() else {}
            except (ValueError, RecursionError) as error:
                problems.append(Problem(file.name, number, f"not JSON ({str(error)[:100]})"))
        return
    yield from _read_history(file.name, text, problems)


def _tag_of(file: Path) -> str | None:
    """Return the curve of TensorBoard's CSV, which has its tag in the file name only."""
    stem = re.sub(r"\W+", "_", file.stem)
    return next((name for name in CURVES if stem.endswith(re.sub(r"\W+", "_", name))), None)


def _read_history(name: str, text: str, problems: list[Problem]) -> list[Any]:
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


def _parse_before_break(text: str) -> list[Any]:
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


def answer_from_curves(
    rows: Sequence[Mapping[str, float]], questions: Mapping[str, str]
) -> dict[str, Answer]:
    """Answer the weight-sync question from the averages, by size alone; the others cannot be told."""
    found = {
        name: unknown_answer(question, "averages per step only", WHAT_TO_LOG)
        for name, question in questions.items()
    }
    levels = np.array([row["mean_abs_log_rho"] for row in rows])
    level, third = float(np.median(levels)), max(1, len(levels) // 3)
    growth = float(np.median(levels[-third:]) / max(np.median(levels[:third]), 1e-12))
    score = max(level / LIMITS["level"], growth / LIMITS["growth"] if len(levels) >= 6 else 0.0)
    if score >= 1:
        verdict = "too large or growing: a broken sync, or growth through training itself"
    else:
        size = "BF16 noise" if level <= BF16 else "FP8 noise" if level <= FP8 else "more than FP8 noise"
        verdict = f"number formats: the size of {size}"
    found["weight_sync"] = Answer(
        questions["weight_sync"],
        verdict,
        min(MAX_CONFIDENCE, estimate_confidence(score, 10**6)),
        score,
        (
            f"median of mean |log rho| {level:.3g} nats",
            f"last third of the steps over the first: {growth:.2f}",
        ),
        WHAT_TO_LOG,
    )
    return found
