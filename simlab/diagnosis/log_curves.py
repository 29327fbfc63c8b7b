"""Answer from averages per step: TRL's `trainer_state.json`, and curves of W&B, TensorBoard or trackio.

Averages over tokens do not distinguish causes: the answer depends only on size and growth, and its evidence
states this.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from simlab.core.json_value import Json
from simlab.diagnosis.answer import Answer, estimate_confidence, unknown_answer
from simlab.diagnosis.curve_files import read_entries
from simlab.diagnosis.curve_names import CURVES, LEVELS, STEPS, find_curve
from simlab.diagnosis.log import Problem, printable

MAX_BYTES = 2**28
SOURCE = "curve-level: averages per step"

WHAT_TO_LOG = (
    "averages only; write the log-probs of both engines and the token ids of a step to Parquet or JSON lines "
    "to answer the other questions"
)
LIMITS = {"level": 0.8, "growth": 2.5}
BF16, EIGHT_BITS = 0.07, 0.5
"""Largest RMS or mean abs(log rho) of real engines (`simlab run real_pairs`), nats: 0.03 to 0.067 of BF16,
0.1 to 0.47 of W8A8 and FP8 caches."""
MAX_CONFIDENCE = 0.65


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
        for number, entry in enumerate(read_entries(file, problems), start=1):
            if not isinstance(entry, Mapping):
                problems.append(Problem(file.name, number, "not a log entry"))
                continue
            keys |= dict.fromkeys(map(str, list(entry)[:100]))
            row = _read_entry(entry, file.name, number, problems)
            if row:
                rows.setdefault(row["step"], {}).update(row)
    measured = [row for _, row in sorted(rows.items()) if np.isfinite(_level(row))]
    if not measured:
        reason = f"{problems[0].reason}. " if problems else ""
        wanted = ", ".join(name for name, column in CURVES.items() if column in LEVELS)
        listed = ", ".join(list(keys)[:30]) or "no row"
        message = f"{files[0].name}: {reason}No curve of the mismatch ({wanted}). Found: {listed}."
        raise ValueError(printable(message))
    return [row | {"mean_abs_log_rho": _level(row)} for row in measured], problems


def _read_entry(
    entry: Mapping[str, Json], file: str, number: int, problems: list[Problem]
) -> dict[str, float] | None:
    """Return the known columns of an entry; None, with a problem, if a number is broken."""
    columns = {find_curve(str(name)): value for name, value in entry.items()}
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


def _level(row: Mapping[str, float]) -> float:
    if "mean_abs_log_rho" in row:
        return row["mean_abs_log_rho"]
    if "k3_kl" in row:
        return float(np.sqrt(2 * max(0.0, row["k3_kl"])))
    if "mean_exp_abs_log_rho" in row:
        return float(np.log(max(1.0, row["mean_exp_abs_log_rho"])))
    return float(np.sqrt(2 * max(0.0, row["k1_kl"]))) if "k1_kl" in row else np.nan


def answer_from_curves(
    rows: Sequence[Mapping[str, float]], questions: Mapping[str, str]
) -> dict[str, Answer]:
    """Answer the weight-sync question from the size of the averages; all other answers are unknown."""
    answers = {
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
        size = "BF16" if level <= BF16 else "8-bit" if level <= EIGHT_BITS else "more than 8-bit"
        verdict = f"number formats: the size of {size} noise"
    answers["weight_sync"] = Answer(
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
    return answers
