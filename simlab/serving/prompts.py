"""The input of a probe except the weights: prompts of equal length, and the end-of-sequence token."""

import contextlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Int

from simlab.models.config import TransformerConfig
from simlab.serving.open_engine import find_python
from simlab.serving.rewards import load_questions
from simlab.serving.transformers_engine import TransformersEngine
from simlab.tasks.vocabulary import EOS_TOKEN_ID, VOCABULARY_SIZE, encode

Encode = Callable[[str], np.ndarray]


def read_prompt_file(
    path: str | Path, encode: Encode = encode, vocab_size: int = VOCABULARY_SIZE
) -> list[np.ndarray]:
    """Return the prompts of a file, one per line: a JSON list of token ids, a text, or a text in quotes.

    Args:
        path: text file; empty lines are skipped.
        encode: maps a text to token ids.
        vocab_size: bound on token ids; all must be smaller.

    Returns:
        Token ids of each prompt, int32 [P].

    Raises:
        ValueError: A line is not a prompt, or the file has none.
    """
    prompts = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompts.append(_parse_line(line, encode, vocab_size))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    if not prompts:
        raise ValueError(f"{path} must have at least one prompt.")
    return prompts


def _parse_line(line: str, encode: Encode, vocab_size: int) -> np.ndarray:
    value = json.loads(line) if line.lstrip()[0] in '["' else line
    if isinstance(value, str):
        tokens = encode(value)
        if not len(tokens):
            raise ValueError(f"a prompt must have at least one token, got the text {value!r}.")
        return tokens
    if not value or not all(type(token) is int and token >= 0 for token in value):
        raise ValueError(f"token ids must be a list of at least one integer >= 0, got {value}.")
    if max(value) >= vocab_size:
        raise ValueError(
            f"token ids must be below {vocab_size}, the vocabulary size of the model, got {max(value)}."
        )
    return np.asarray(value, np.int32)


def load_task_prompts(name: str, count: int, encode: Encode = encode) -> list[np.ndarray]:
    """Return up to `count` held-out prompts of a simlab task, `reasoning-gym:NAME` or `math-verify:FILE`.

    Args:
        name: task, see above.
        count: largest number of prompts.
        encode: maps a text to token ids.

    Returns:
        Token ids of each prompt [P].

    Raises:
        ValueError: The task is unknown, or its package is not installed.
    """
    return [encode(question.text) for question in load_questions(name, count, "held_out")]


def stack_prompts(
    prompts: Sequence[Int[np.ndarray, " P"]], length: int | None = None
) -> Int[np.ndarray, "N P"]:
    """Return prompts as int32 [N, P]: the last `length` tokens of each, by default the shortest length.

    All rows have one length, so engines need no padding, which they could treat differently.

    Raises:
        ValueError: `length` is below 1, or a prompt is shorter.
    """
    shortest = min(len(prompt) for prompt in prompts)
    length = shortest if length is None else length
    if not 1 <= length <= shortest:
        raise ValueError(
            f"--prompt-tokens must be between 1 and {shortest}, the length of the shortest prompt, "
            f"got {length}."
        )
    return np.stack([prompt[-length:] for prompt in prompts]).astype(np.int32)


def read_prompts(
    checkpoint: Path,
    config: TransformerConfig,
    task: str | None,
    file: Path | None,
    count: int,
    length: int | None,
) -> Int[np.ndarray, "N P"]:
    """Return prompts int32 [N, P] of a task or a file; exactly one must be given.

    Models over simlab's vocabulary use its encoding, others the tokenizer of the checkpoint in the
    environment of transformers.

    Raises:
        ValueError: The input is invalid.
        EngineError: The environment is missing.
    """
    if (task is None) == (file is None):
        raise ValueError("Give either --task or --prompts.")
    with contextlib.ExitStack() as stack:
        encode_text: Encode = encode
        if config.vocab_size != VOCABULARY_SIZE:
            tokenizer = stack.enter_context(TransformersEngine(find_python("hf")))
            encode_text = partial(tokenizer.encode, checkpoint)
        prompts = (
            load_task_prompts(task, count, encode_text)
            if task is not None
            else read_prompt_file(file or "", encode_text, config.vocab_size)
        )
    return stack_prompts(prompts, length)


def find_eos_token_id(checkpoint: Path, config: TransformerConfig) -> int:
    """Return the end token of simlab's vocabulary, or the (first) one in the `config.json` of the checkpoint.

    Raises:
        ValueError: The checkpoint has none.
    """
    if config.vocab_size == VOCABULARY_SIZE:
        return EOS_TOKEN_ID
    file = Path(checkpoint) / "config.json"
    ids = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
    first = ids[0] if isinstance(ids, list) and ids else ids
    if type(first) is not int:
        raise ValueError(f"{file} must have eos_token_id. Pass --end.")
    return first
