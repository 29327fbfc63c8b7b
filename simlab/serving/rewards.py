"""Rewards of texts: tasks of simlab and `reasoning-gym`, and answers compared by `math-verify`.

A `TextTask` makes questions the task of a recipe whose rollouts come from a real engine, or from an emulated
one with the same protocol.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from simlab.core.catalog import lookup
from simlab.core.json_value import Json
from simlab.core.plugins import import_module
from simlab.tasks import TASKS, Task
from simlab.tasks.task import SPLITS
from simlab.tasks.vocabulary import CHARACTERS, EOS_TOKEN_ID, PAD_TOKEN_ID, decode, encode


@dataclass(frozen=True)
class Question:
    """A text, and the reward in [0, 1] of an answer text."""

    text: str
    reward: Callable[[str], float]


def load_questions(name: str, count: int, split: str = "train") -> list[Question]:
    """Return up to `count` questions of a simlab task, `reasoning-gym:NAME` or `math-verify:FILE`.

    Raises:
        ValueError: The name is unknown, or its package is not installed.
    """
    kind, colon, rest = name.partition(":")
    if colon:
        return lookup(QUESTIONS, kind, "kind of question")(rest, count, split)
    return load_task_questions(name, count, split)


def load_task_questions(name: str, count: int, split: str = "train") -> list[Question]:
    """Return questions of a simlab task; answers outside its vocabulary get no reward."""
    task = lookup(TASKS, name, "task")()
    return [
        Question(decode(prompt), partial(_check_text, task, prompt))
        for prompt in task.prompt_set(split)[:count]
    ]


def _check_text(task: Task, prompt: np.ndarray, answer: str) -> float:
    try:
        tokens = encode(answer + CHARACTERS[EOS_TOKEN_ID])[: task.response_length]
    except ValueError:
        return 0.0
    padding = np.full(task.response_length - len(tokens), PAD_TOKEN_ID, np.int32)
    return float(task.check(np.concatenate([prompt, tokens, padding])))


def load_gym_questions(name: str, count: int, split: str = "train", **options: object) -> list[Question]:
    """Return questions of a task of reasoning-gym with its `options`; the splits are two of its seeds.

    Scores the text inside the last `<answer>` tag, or the complete answer; an answer that contains the
    correct one gets a partial reward. A scorer may evaluate the answer, without a time limit.
    """
    gym = _import_package("reasoning_gym", "reasoning-gym")
    lookup(gym.factory.DATASETS, name, "task of reasoning-gym")
    # A probe uses the held-out questions.
    dataset = gym.create_dataset(name, size=count, seed=int(split != "held_out"), **options)

    def reward(entry: dict[str, Json], answer: str) -> float:
        extracted = gym.utils.extract_answer(answer)
        try:
            return float(
                dataset.score_answer(answer=answer.strip() if extracted is None else extracted, entry=entry)
            )
        except Exception:  # some scorers raise arbitrary errors for unreadable answers
            return 0.0

    return [Question(entry["question"], partial(reward, entry)) for entry in dataset]


def load_math_questions(file: str | Path, count: int, split: str = "train") -> list[Question]:
    """Return the first questions of `file`, one JSON object with `question` and `answer` per line.

    The reward is 1 if math-verify finds an answer equal to the correct one, as LaTeX or plain text, else 0.
    The file serves as every split.

    Raises:
        ValueError: A line lacks a question or a readable answer, or math-verify is not installed.
    """
    del split
    verify = _import_package("math_verify", "math-verify")
    questions = []
    for number, line in enumerate(Path(file).read_text().splitlines()[:count], 1):
        try:
            entry = json.loads(line)
            answer = verify.parse(entry["answer"])
            text = entry["question"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file}, line {number}: rows must have question and answer ({error})."
            ) from error
        if not answer:
            raise ValueError(
                f"{file}, line {number}: math-verify must find an answer in {entry['answer']!r}."
            )
        # The order matters: an inequality may answer an interval, not the reverse.
        questions.append(
            Question(text, lambda text, answer=answer: float(verify.verify(answer, verify.parse(text))))
        )
    return questions


QUESTIONS: dict[str, Callable[[str, int, str], list[Question]]] = {
    "reasoning-gym": load_gym_questions,
    "math-verify": load_math_questions,
}
"""Part of a name before the colon -> function of the part after it."""


def _import_package(module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(f"{name} is not installed ({error}). Install: pip install {name}") from None


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Questions as rows of tokens of equal length, with rewards of the texts of responses.

    The rollouts of its recipe must come from `simlab.serving.real_training.engine_rollout`, with a real
    engine or a `JaxEngine`, since texts are scored outside compiled functions. The first `held_out_size`
    questions are the held-out split. There are no demonstrations.
    """

    questions: tuple[Question, ...]
    rows: tuple[tuple[int, ...], ...]
    max_tokens: int
    decode: Callable[[np.ndarray], str]
    eos_token_id: int = EOS_TOKEN_ID
    pad_token_id: int = PAD_TOKEN_ID

    def __post_init__(self):
        """Reject a task without training questions; responses may be longer than those of other tasks."""
        if not 0 <= self.held_out_size < len(self.rows):
            raise ValueError(
                f"held_out must be at least 0 and below the {len(self.rows)} questions of one length, "
                f"got {self.held_out_size}."
            )

    @property
    def problem_count(self) -> int:
        """Number of questions."""
        return len(self.questions)

    @property
    def response_length(self) -> int:
        """Maximum length of a response with its end token."""
        return self.max_tokens

    @property
    def prompt_length(self) -> int:
        """Length of every question in tokens."""
        return len(self.rows[0])

    def problem(self, number: int) -> str:
        """Return a question."""
        return self.questions[number].text

    def prompt_set(self, split: str = "train") -> np.ndarray:
        """Return all prompts of a split, int32 `[size, P]`."""
        lookup(dict.fromkeys(SPLITS), split, "split")
        rows = np.asarray(self.rows, np.int32)
        return rows[self.held_out_size :] if split == "train" else rows[: self.held_out_size]

    def check(self, tokens: Array) -> Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the reward of `tokens [..., P + T]`, up to the first end token."""
        if isinstance(tokens, Tracer):
            raise ValueError("Texts cannot be scored inside compiled functions. Sample with engine_rollout.")
        rows = np.asarray(tokens)
        rewards = [self._compute_reward(row) for row in rows.reshape(-1, rows.shape[-1])]
        return jnp.asarray(np.asarray(rewards, np.float32).reshape(rows.shape[:-1]))

    def _compute_reward(self, row: np.ndarray) -> float:
        response = row[self.prompt_length :]
        answer = response[: np.argmax(np.append(response, self.eos_token_id) == self.eos_token_id)]
        return self._by_row[tuple(row[: self.prompt_length].tolist())].reward(self.decode(answer))

    @cached_property
    def _by_row(self) -> dict[tuple[int, ...], Question]:
        return dict(zip(self.rows, self.questions, strict=True))

    def reward(self, prompt: Array, response: Array) -> Array:  # noqa: ARG002 - it raises
        """Raise `ValueError`: `check` scores complete batches."""
        raise ValueError("Texts cannot be scored on the device. Use check.")

    def answer(self, key: Array, prompt: Array) -> Array:  # noqa: ARG002 - it raises
        """Raise `ValueError`: questions have no demonstrations."""
        raise ValueError("Questions have no demonstrations, so they cannot train a warm start.")


def build_text_task(
    questions: Sequence[Question],
    max_tokens: int,
    *,
    encode: Callable[[str], np.ndarray] = encode,
    decode: Callable[[np.ndarray], str] = decode,
    eos_token_id: int = EOS_TOKEN_ID,
    pad_token_id: int = PAD_TOKEN_ID,
    held_out: int = 0,
) -> TextTask:
    """Return a task of these questions. Only questions with the most common number of tokens are used.

    Engines need rows of one length.

    Args:
        questions: texts with rewards.
        max_tokens: largest number of tokens of a response.
        encode: maps a text to token ids; default: simlab's tokenizer.
        decode: maps token ids to a text.
        eos_token_id: token that ends a response.
        pad_token_id: token that fills a row after its end.
        held_out: number of questions reserved for evaluation.

    Raises:
        ValueError: No question remains for training.
    """
    rows = [tuple(int(token) for token in encode(question.text)) for question in questions]
    length = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    chosen = [(question, row) for question, row in zip(questions, rows, strict=True) if len(row) == length]
    return TextTask(
        questions=tuple(question for question, _ in chosen),
        rows=tuple(row for _, row in chosen),
        max_tokens=max_tokens,
        decode=decode,
        eos_token_id=eos_token_id,
        pad_token_id=pad_token_id,
        held_out_size=held_out,
        train_size=len(chosen) - held_out,
    )
