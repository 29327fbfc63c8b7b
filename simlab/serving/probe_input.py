"""What a probe reads besides weights: prompts as rows, and the token that ends a response."""

import json
from pathlib import Path

import numpy as np

from simlab.models.config import TransformerConfig
from simlab.serving.open_engine import python_with
from simlab.serving.prompts import as_rows, file_prompts, task_prompts
from simlab.serving.transformers_engine import TransformersEngine
from simlab.tasks.vocabulary import END, VOCABULARY_SIZE


def read_prompts(
    checkpoint: Path,
    config: TransformerConfig,
    task: str | None,
    file: Path | None,
    count: int,
    length: int | None,
) -> np.ndarray:
    """Return prompts int32 [N, P] of a task or a file, exactly one of which is given.

    Texts are encoded in the lab's vocabulary for a model over it, else by the checkpoint's tokenizer in the
    environment of transformers. Raises `ValueError` for bad input, `EngineError` without that environment.
    """
    if (task is None) == (file is None):
        raise ValueError("give either a task or a file of prompts")
    if config.vocab_size == VOCABULARY_SIZE:
        found = task_prompts(task, count) if task is not None else file_prompts(file or "")
        return as_rows(found, length)
    with TransformersEngine(python_with("hf")) as tokenizer:

        def encode(text: str) -> np.ndarray:
            return tokenizer.encode(checkpoint, text)

        found = task_prompts(task, count, encode) if task is not None else file_prompts(file or "", encode)
    return as_rows(found, length)


def end_token(checkpoint: Path, config: TransformerConfig) -> int:
    """Return the end token of the lab's vocabulary, or of a folder's `config.json`, the first of several.

    Raises `ValueError` if the checkpoint does not say.
    """
    if config.vocab_size == VOCABULARY_SIZE:
        return END
    file = Path(checkpoint) / "config.json"
    ends = json.loads(file.read_text()).get("eos_token_id") if file.is_file() else None
    first = ends[0] if isinstance(ends, list) and ends else ends
    if type(first) is not int:
        raise ValueError(f"{checkpoint} names no end token; give --end")
    return first
