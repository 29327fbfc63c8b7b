"""TRL's logs: averages per step in `trainer_state.json`, and `completions_*.parquet` without log-probs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simlab.diagnosis.answer import Answer, confidence, unknown
from simlab.diagnosis.log import Problem, printable
from simlab.diagnosis.weight_sync import BF16, FP8, LIMITS
from simlab.diagnosis.weight_sync import QUESTION as SYNC

STATE = "trainer_state.json"
LEVEL = "sampling/sampling_logp_difference/mean"
LARGEST_STATE = 2**28
# TRL's name -> the column here.
LOGGED = {
    LEVEL: "mean_abs_log_rho",
    "sampling/sampling_logp_difference/max": "max_abs_log_rho",
    "sampling/importance_sampling_ratio/mean": "mean_weight",
    "sampling/importance_sampling_ratio/min": "min_weight",
    "sampling/importance_sampling_ratio/max": "max_weight",
    "completions/mean_length": "response_length",
    "reward": "reward",
    "entropy": "entropy",
}
TO_LOG = (
    "TRL averages its log-probs away; write `old_per_token_logps`, `sampling_per_token_logps` and "
    "`completion_ids` of a step to Parquet or JSON lines to have the rest answered"
)


def state_file(path: Path) -> Path | None:
    """The newest trainer_state.json of a TRL output folder, or of a checkpoint in it; None for others."""
    if path.name == STATE and path.is_file():
        return path
    if not path.is_dir():
        return None
    # None that a link leads to elsewhere.
    found = [
        file
        for file in (path / STATE, *path.glob(f"checkpoint-*/{STATE}"))
        if file.is_file() and not file.is_symlink() and (file.parent == path or not file.parent.is_symlink())
    ]
    return max(found, key=lambda file: file.stat().st_mtime, default=None)


def read_state(file: Path) -> tuple[list[dict[str, float]], list[Problem]]:
    """Return one row per logged step that has the engines' difference, and the entries that are broken.

    Raises `ValueError` naming the file when it is no such state, or was written without vLLM.
    """
    if file.stat().st_size > LARGEST_STATE:
        raise ValueError(f"{file.name} is larger than {LARGEST_STATE:,} bytes")
    entries, problems = _history(file)
    rows = []
    for number, entry in enumerate(entries, start=1):
        if isinstance(entry, Mapping) and LEVEL not in entry:
            continue
        try:
            row = _row(entry)
            if not np.isfinite(row["mean_abs_log_rho"]):
                raise ValueError(f"{LEVEL} is {row['mean_abs_log_rho']}")
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            problems.append(Problem(file.name, number, f"no entry of a log ({str(error)[:100]})"))
        else:
            rows.append(row)
    if not rows:
        reason = f": {problems[0].reason}" if problems else f" has no {LEVEL}: it is logged with use_vllm"
        raise ValueError(printable(f"{file.name}{reason}"))
    return rows, problems


def _history(file: Path) -> tuple[list[Any], list[Problem]]:
    """Entries of `log_history`; of a file that breaks off, those before the break."""
    text = file.read_text(errors="replace")
    try:
        history = json.loads(text)["log_history"]
    except json.JSONDecodeError as error:
        entries = _before_the_break(text)
        return entries, [Problem(file.name, len(entries) + 1, f"the file breaks off ({error.msg})")]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file.name} is no state of a TRL run ({type(error).__name__})") from error
    if not isinstance(history, list):
        raise ValueError(f"{file.name} is no state of a TRL run: log_history is no list")
    return history, []


def _before_the_break(text: str) -> list[Any]:
    decoder, entries = json.JSONDecoder(), []
    place = text.find("{", text.find('"log_history"')) if '"log_history"' in text else -1
    while place >= 0:
        try:
            entry, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            break
        entries.append(entry)
        place = text.find("{", end)
    return entries


def _row(entry: Mapping[str, Any]) -> dict[str, float]:
    columns = {"step": float(entry["step"])}
    return columns | {ours: float(entry.get(theirs, np.nan)) for theirs, ours in LOGGED.items()}


def answers_from_averages(
    rows: Sequence[Mapping[str, float]], questions: Mapping[str, str]
) -> dict[str, Answer]:
    """Answer what the averages allow, by name of detector: the weight sync, and that by size alone."""
    found = {
        name: unknown(question, "averages per step only", TO_LOG) for name, question in questions.items()
    }
    levels = np.array([row["mean_abs_log_rho"] for row in rows])
    levels = levels[np.isfinite(levels)]
    if not len(levels):
        return found
    level, third = float(np.median(levels)), max(1, len(levels) // 3)
    growth = float(np.median(levels[-third:]) / max(np.median(levels[:third]), 1e-12))
    score = max(level / LIMITS["level"], growth / LIMITS["growth"] if len(levels) >= 6 else 0.0)
    if score >= 1:
        verdict = "too large or growing: a broken sync, or training's own growth"
    else:
        verdict = f"number formats: the size of {'BF16' if level <= BF16 else 'FP8'} noise"
    if score < 1 and level > FP8:
        verdict = "number formats: coarser than FP8"
    found["weight_sync"] = Answer(
        SYNC,
        verdict,
        min(0.65, confidence(score, 10**6)),
        score,
        (
            f"median of mean |log rho| {level:.3g} nats",
            f"last third of the steps over the first: {growth:.2f}",
        ),
        TO_LOG,
    )
    return found
