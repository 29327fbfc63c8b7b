"""Prompts for a probe as rows of equal length, from a file, a task of simlab, or another task library."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from simlab.serving.rewards import load_questions
from simlab.tasks.vocabulary import encode

Encode = Callable[[str], np.ndarray]


def read_prompt_file(path: str | Path, encode: Encode = encode) -> list[np.ndarray]:
    """Return the prompts of a file, one per line: a JSON list of token ids, a text, or a text in quotes.

    Raises:
        ValueError: A line is not a prompt, or the file has none.
    """
    prompts = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompts.append(_parse_line(line, encode))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    if not prompts:
        raise ValueError(f"{path} must have at least one prompt.")
    return prompts


def _parse_line(line: str, encode: Encode) -> np.ndarray:
    value = json.loads(line) if line.lstrip()[0] in '["' else line
    if isinstance(value, str):
        return encode(value)
    if not value or not all(type(token) is int and token >= 0 for token in value):
        raise ValueError(f"token ids must be a list of at least one integer >= 0, got {value}.")
    return np.asarray(value, np.int32)


def load_task_prompts(name: str, count: int, encode: Encode = encode) -> list[np.ndarray]:
    """Return up to `count` held-out prompts of a simlab task, `reasoning-gym:NAME` or `math-verify:FILE`.

    Raises:
        ValueError: The task is unknown, or its package is not installed.
    """
    return [encode(question.text) for question in load_questions(name, count, "held_out")]


def stack_prompts(prompts: Sequence[np.ndarray], length: int | None = None) -> np.ndarray:
    """Return prompts as int32 [N, P]: the last `length` tokens of each, by default the shortest length.

    All rows have one length, so engines need no padding, in which they could differ.

    Raises:
        ValueError: A prompt is shorter than `length`.
    """
    shortest = min(len(prompt) for prompt in prompts)
    length = length or shortest
    if length > shortest:
        raise ValueError(f"length must be at most {shortest}, the shortest prompt, got {length}.")
    return np.stack([prompt[-length:] for prompt in prompts]).astype(np.int32)
