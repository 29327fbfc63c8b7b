"""Prompts for a probe: from a file, from a task of the lab, or another's, as equally long rows."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from simlab.serving.rewards import questions
from simlab.tasks.vocabulary import encode

Encode = Callable[[str], np.ndarray]


def file_prompts(path: str | Path, encode: Encode = encode) -> list[np.ndarray]:
    """Return the prompts of a file, one per line: a JSON list of token ids, or a text, or a text in quotes.

    Raises `ValueError` naming the line that is no prompt.
    """
    found = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(_line_tokens(line, encode))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    if not found:
        raise ValueError(f"{path} holds no prompts")
    return found


def _line_tokens(line: str, encode: Encode) -> np.ndarray:
    value = json.loads(line) if line.lstrip()[0] in '["' else line
    if isinstance(value, str):
        return encode(value)
    if not value or not all(type(token) is int and token >= 0 for token in value):
        raise ValueError("a list of token ids holds integers from 0 on, at least one")
    return np.asarray(value, np.int32)


def task_prompts(name: str, count: int, encode: Encode = encode) -> list[np.ndarray]:
    """Return up to `count` held-out prompts: a task of the lab, `reasoning-gym:NAME`, `math-verify:FILE`.

    Raises `ValueError` for an unknown task, and where its package is not installed.
    """
    return [encode(question.text) for question in questions(name, count, "held_out")]


def as_rows(prompts: Sequence[np.ndarray], length: int | None = None) -> np.ndarray:
    """Return prompts as int32 [N, P]: the last `length` tokens of each, by default all of the shortest.

    Engines read rows of one length, so that no padding can differ between them. Raises `ValueError` when a
    prompt is shorter than `length`.
    """
    shortest = min(len(prompt) for prompt in prompts)
    length = length or shortest
    if length > shortest:
        raise ValueError(f"{length} tokens of each prompt; the shortest has {shortest}")
    return np.stack([prompt[-length:] for prompt in prompts]).astype(np.int32)
