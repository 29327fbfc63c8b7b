"""The input of a probe besides weights: prompts, and the token that ends a response."""

import json
from pathlib import Path

import numpy as np

from simlab.models.config import TransformerConfig
from simlab.serving.open_engine import find_python
from simlab.serving.prompts import load_task_prompts, read_prompt_file, stack_prompts
from simlab.serving.transformers_engine import TransformersEngine
from simlab.tasks.vocabulary import EOS_TOKEN_ID, VOCABULARY_SIZE


def read_prompts(
    checkpoint: Path,
    config: TransformerConfig,
    task: str | None,
    file: Path | None,
    count: int,
    length: int | None,
) -> np.ndarray:
    """Return prompts int32 [N, P] of a task or a file; exactly one must be given.

    Models over simlab's vocabulary use its encoding, others the tokenizer of the checkpoint in the
    environment of transformers.

    Raises:
        ValueError: The input is invalid.
        EngineError: The environment is missing.
    """
    if (task is None) == (file is None):
        raise ValueError("Give either --task or --prompts.")
    if config.vocab_size == VOCABULARY_SIZE:
        prompts = load_task_prompts(task, count) if task is not None else read_prompt_file(file or "")
        return stack_prompts(prompts, length)
    with TransformersEngine(find_python("hf")) as tokenizer:

        def encode(text: str) -> np.ndarray:
            return tokenizer.encode(checkpoint, text)

        prompts = (
            load_task_prompts(task, count, encode)
            if task is not None
            else read_prompt_file(file or "", encode)
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
