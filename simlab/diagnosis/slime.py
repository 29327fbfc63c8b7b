"""Read `.pt` dumps of slime and miles: `--save-debug-train-data`, and miles' `policy_loss_debug`."""

from pathlib import Path
from typing import Any

import numpy as np

from simlab.diagnosis.log import Problem
from simlab.diagnosis.rows import Ragged
from simlab.diagnosis.torch_file import load

# Key of `rollout_data` -> column; lists over samples, each over the response's tokens.
TOKENS = {
    "log_probs": "logp_train",
    "rollout_log_probs": "logp_infer",
    "loss_masks": "mask",
    "advantages": "advantages",
}
# miles' policy_loss_debug: what one call of the loss saw.
LOSS_TOKENS = {
    "old_log_probs": "logp_train",
    "rollout_log_probs": "logp_infer",
    "train_log_probs": "logp",
    "local_loss_mask": "mask",
    "advantages": "advantages",
}
SAMPLES = {
    "raw_reward": "reward",
    "rewards": "reward",
    "weight_versions": "version",
    "group_indices": "group",
}


def read_slime(path: Path) -> tuple[dict[str, Ragged], dict[str, np.ndarray], list[Problem]]:
    """Return the columns over tokens, those over sequences, and the ignored columns.

    Raises:
        ValueError: The pickle contains more than arrays, or is not a slime dump.
    """
    content = load(path)
    data = _find_samples(content)
    if data is None:
        raise ValueError(
            f"{path.name} must be a dump of slime's --save-debug-train-data, got no rollout_data"
        )
    names = LOSS_TOKENS if "train_log_probs" in data else TOKENS
    tokens = {column: _ragged(data[key], key) for key, column in names.items() if key in data}
    if "tokens" in data and "response_lengths" in data:
        tokens["ids"] = _responses(data["tokens"], data["response_lengths"])
    count = len(next(iter(tokens.values())).lengths) if tokens else 0
    problems = [
        Problem(path.name, None, f"{column} must have {count} samples, got {len(ragged.lengths)}: ignored")
        for column, ragged in tokens.items()
        if len(ragged.lengths) != count
    ]
    tokens = {column: ragged for column, ragged in tokens.items() if len(ragged.lengths) == count}
    number = _integer(content.get("rollout_id") if isinstance(content, dict) else None)
    scalars: dict[str, np.ndarray] = {"step": np.full(count, number, np.int64)}
    for key, column in SAMPLES.items():
        if key in data and column not in scalars:
            values = _numbers(data[key], count)
            if values is None:
                problems.append(Problem(path.name, None, f"{key} must have one number per sample: ignored"))
            else:
                scalars[column] = values
    return tokens, scalars, problems


def _find_samples(content: object) -> dict[str, object] | None:
    """Return lists over samples by key, from any of the layouts."""
    if not isinstance(content, dict):
        return None
    if isinstance(content.get("rollout_data"), dict):
        return content["rollout_data"]
    samples = content.get("samples")
    if isinstance(samples, list) and samples and all(isinstance(sample, dict) for sample in samples):
        # slime's format_version 2: one dict per sample.
        keys = [key for key in samples[0] if all(key in sample for sample in samples)]
        names = {"response_length": "response_lengths", "loss_mask": "loss_masks", "reward": "rewards"}
        return {str(names.get(key, key)): [sample[key] for sample in samples] for key in keys}
    return content if {"train_log_probs", "rollout_log_probs"} <= content.keys() else None


def _integer(value: object) -> int:
    return value if type(value) is int else 0


def _ragged(rows: object, key: str) -> Ragged:
    if not isinstance(rows, list):
        raise ValueError(f"{key} must be a list over samples")
    arrays = [np.ravel(_array(row)) for row in rows]
    lengths = np.array([-1 if row is None else len(array) for row, array in zip(rows, arrays, strict=True)])
    values = np.concatenate(arrays) if arrays else np.zeros(0, np.float32)
    return Ragged(values, lengths.astype(np.int64))


def _array(row: object) -> np.ndarray:
    if row is None:
        return np.zeros(0, np.float32)
    if isinstance(row, list) and not all(type(number) in (int, float, bool) for number in row):
        raise ValueError("samples must be numbers, got lists")
    array = np.asarray(row)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"samples must be numbers, got {type(row).__name__}")
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)


def _responses(rows: object, lengths: object) -> Ragged:
    """Return the last `length` tokens of each sample, without its prompt."""
    if not (isinstance(rows, list) and isinstance(lengths, list) and len(rows) == len(lengths)):
        raise ValueError("tokens and response_lengths must be lists of equal length")
    responses = [
        _array(row)[max(0, np.size(row) - _integer(length)) :]
        for row, length in zip(rows, lengths, strict=True)
    ]
    return _ragged(responses, "tokens")


def _first(row: Any) -> float:
    """Return a number, or the first of a list or array; raise ValueError or TypeError otherwise."""
    if isinstance(row, list):
        row = row[0]
    return float(row.flat[0] if isinstance(row, np.ndarray) else row)


def _numbers(rows: Any, count: int) -> np.ndarray | None:
    try:
        values = np.array([_first(row) for row in rows], np.float64)
    except (ValueError, TypeError, IndexError):
        return None
    return values if values.shape == (count,) else None
