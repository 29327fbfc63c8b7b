"""Read TRL's averages per step from `trainer_state.json`; its `completions_*.parquet` have no log-probs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simlab.diagnosis.answer import Answer, estimate_confidence, unknown_answer
from simlab.diagnosis.log import Problem, printable
from simlab.diagnosis.weight_sync import BF16, FP8, LIMITS
from simlab.diagnosis.weight_sync import QUESTION as SYNC

STATE_FILE = "trainer_state.json"
LEVEL_KEY = "sampling/sampling_logp_difference/mean"
MAX_STATE_BYTES = 2**28
# TRL's name -> column.
LOGGED = {
    LEVEL_KEY: "mean_abs_log_rho",
    "sampling/sampling_logp_difference/max": "max_abs_log_rho",
    "sampling/importance_sampling_ratio/mean": "mean_weight",
    "sampling/importance_sampling_ratio/min": "min_weight",
    "sampling/importance_sampling_ratio/max": "max_weight",
    "completions/mean_length": "response_length",
    "reward": "reward",
    "entropy": "entropy",
}
WHAT_TO_LOG = (
    "TRL logs averages only; write `old_per_token_logps`, `sampling_per_token_logps` and "
    "`completion_ids` of a step to Parquet or JSON lines to answer the other questions"
)


def find_state_file(path: Path) -> Path | None:
    """Return the newest trainer_state.json of a TRL output directory or its checkpoints, else None."""
    if path.name == STATE_FILE and path.is_file():
        return path
    if not path.is_dir():
        return None
    # No links: a link could lead out of the directory.
    found = [
        file
        for file in (path / STATE_FILE, *path.glob(f"checkpoint-*/{STATE_FILE}"))
        if file.is_file() and not file.is_symlink() and (file.parent == path or not file.parent.is_symlink())
    ]
    return max(found, key=lambda file: file.stat().st_mtime, default=None)


def read_state(file: Path) -> tuple[list[dict[str, float]], list[Problem]]:
    """Return one row per logged step with a log-prob difference, and the broken entries.

    Raises:
        ValueError: The file is not a TRL state, or TRL ran without vLLM.
    """
    if file.stat().st_size > MAX_STATE_BYTES:
        raise ValueError(f"{file.name} must have at most {MAX_STATE_BYTES:,} bytes.")
    entries, problems = _read_history(file)
    rows = []
    for number, entry in enumerate(entries, start=1):
        if isinstance(entry, Mapping) and LEVEL_KEY not in entry:
            continue
        try:
            row = _row(entry)
            if not np.isfinite(row["mean_abs_log_rho"]):
                raise ValueError(f"{LEVEL_KEY} is {row['mean_abs_log_rho']}")
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            problems.append(Problem(file.name, number, f"not a log entry ({str(error)[:100]})"))
        else:
            rows.append(row)
    if not rows:
        reason = (
            f": {problems[0].reason}" if problems else f" must have {LEVEL_KEY}, which TRL logs with use_vllm"
        )
        raise ValueError(printable(f"{file.name}{reason}"))
    return rows, problems


def _read_history(file: Path) -> tuple[list[Any], list[Problem]]:
    """Return the entries of `log_history`; of a truncated file, the complete ones."""
    text = file.read_text(errors="replace")
    try:
        history = json.loads(text)["log_history"]
    except json.JSONDecodeError as error:
        entries = _parse_before_break(text)
        return entries, [Problem(file.name, len(entries) + 1, f"the file is truncated ({error.msg})")]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{file.name} must be the state of a TRL run, got {type(error).__name__}."
        ) from error
    if not isinstance(history, list):
        raise ValueError(f"{file.name}: log_history must be a list.")
    return history, []


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


def _row(entry: Mapping[str, Any]) -> dict[str, float]:
    columns = {"step": float(entry["step"])}
    return columns | {ours: float(entry.get(theirs, np.nan)) for theirs, ours in LOGGED.items()}


def answer_from_averages(
    rows: Sequence[Mapping[str, float]], questions: Mapping[str, str]
) -> dict[str, Answer]:
    """Answer the weight-sync question from the averages, by size alone; the others cannot be told."""
    found = {
        name: unknown_answer(question, "averages per step only", WHAT_TO_LOG)
        for name, question in questions.items()
    }
    levels = np.array([row["mean_abs_log_rho"] for row in rows])
    levels = levels[np.isfinite(levels)]
    if not len(levels):
        return found
    level, third = float(np.median(levels)), max(1, len(levels) // 3)
    growth = float(np.median(levels[-third:]) / max(np.median(levels[:third]), 1e-12))
    score = max(level / LIMITS["level"], growth / LIMITS["growth"] if len(levels) >= 6 else 0.0)
    if score >= 1:
        verdict = "too large or growing: a broken sync, or growth through training itself"
    else:
        verdict = f"number formats: the size of {'BF16' if level <= BF16 else 'FP8'} noise"
    if score < 1 and level > FP8:
        verdict = "number formats: coarser than FP8"
    found["weight_sync"] = Answer(
        SYNC,
        verdict,
        min(0.65, estimate_confidence(score, 10**6)),
        score,
        (
            f"median of mean |log rho| {level:.3g} nats",
            f"last third of the steps over the first: {growth:.2f}",
        ),
        WHAT_TO_LOG,
    )
    return found
