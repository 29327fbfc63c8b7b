"""Rewards of texts: the lab's tasks, tasks of `reasoning-gym`, and answers that `math-verify` compares.

A question knows what the text of an answer to it earns. Questions are the task of a recipe, as a `TextTask`,
whose rollouts come from a real engine, or from an emulated one behind the same protocol.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from simlab.core.catalog import lookup
from simlab.tasks import TASKS, Task
from simlab.tasks.task import SPLITS
from simlab.tasks.vocabulary import CHARACTERS, END, PAD, decode, encode


@dataclass(frozen=True)
class Question:
    """A text, and the reward in [0, 1] of the text of an answer to it."""

    text: str
    reward: Callable[[str], float]


def questions(name: str, count: int, split: str = "train") -> list[Question]:
    """Return up to `count` questions: of a task of the lab, `reasoning-gym:NAME`, `math-verify:FILE`.

    Raises `ValueError` for a name that is none, and where the package is not installed.
    """
    kind, colon, rest = name.partition(":")
    if colon:
        return lookup(QUESTIONS, kind, "kind of question")(rest, count, split)
    return lab_questions(name, count, split)


def lab_questions(name: str, count: int, split: str = "train") -> list[Question]:
    """Return questions of a task of the lab; an answer that its vocabulary cannot write earns nothing."""
    task = lookup(TASKS, name, "task")()
    return [
        Question(decode(prompt), partial(_checked, task, prompt)) for prompt in task.prompt_set(split)[:count]
    ]


def _checked(task: Task, prompt: np.ndarray, answer: str) -> float:
    try:
        tokens = encode(answer + CHARACTERS[END])[: task.response_length]
    except ValueError:
        return 0.0
    padding = np.full(task.response_length - len(tokens), PAD, np.int32)
    return float(task.check(np.concatenate([prompt, tokens, padding])))


def gym_questions(name: str, count: int, split: str = "train", **options: object) -> list[Question]:
    """Return questions of a task of reasoning-gym with its `options`; the splits are two of its seeds.

    Scored is what stands between the last `<answer>` and its end, or the whole answer; an answer that has the
    right one in it earns a part. A scorer may evaluate what an answer says, and has no limit of time.
    """
    gym = _package("reasoning_gym", "reasoning-gym")
    lookup(gym.factory.DATASETS, name, "task of reasoning-gym")
    # Held-out questions are those of a probe.
    dataset = gym.create_dataset(name, size=count, seed=int(split != "held_out"), **options)

    def reward(entry: dict[str, Any], answer: str) -> float:
        said = gym.utils.extract_answer(answer)
        try:
            return float(dataset.score_answer(answer=answer.strip() if said is None else said, entry=entry))
        except Exception:  # some scorers raise whatever comes up when they cannot read an answer
            return 0.0

    return [Question(entry["question"], partial(reward, entry)) for entry in dataset]


def math_questions(file: str | Path, count: int, split: str = "train") -> list[Question]:
    """Return the first questions of `file`, of one JSON object with `question` and `answer` per line.

    An answer earns 1 if math-verify finds it equal to the right one, as LaTeX or plain, else 0. A file is one
    split, whatever is asked for. Raises `ValueError` naming a line without them.
    """
    del split
    verify = _package("math_verify", "math-verify")
    found = []
    for number, line in enumerate(Path(file).read_text().splitlines()[:count], 1):
        try:
            entry = json.loads(line)
            right = verify.parse(entry["answer"])
            text = entry["question"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: no question with its answer ({error})") from error
        if not right:
            raise ValueError(f"{file}, line {number}: math-verify reads no answer in {entry['answer']!r}")
        # The order matters: an inequality may answer an interval, but not the other way round.
        found.append(
            Question(text, lambda said, right=right: float(verify.verify(right, verify.parse(said))))
        )
    return found


QUESTIONS: dict[str, Callable[[str, int, str], list[Question]]] = {
    "reasoning-gym": gym_questions,
    "math-verify": math_questions,
}
"""What stands before the colon of a name -> questions of what stands behind it."""


def _package(module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(f"{name} is not installed ({error}); install it with: pip install {name}") from None


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Questions as rows of tokens, equally long, and rewards of the texts that responses spell.

    The task of a recipe whose rollouts are `simlab.serving.real_training.engine_rollout`'s: texts are scored
    outside compiled programs. `engine_rollout(JaxEngine(...))` is the same with an emulated sampler. The
    first `held_out_size` questions are the held-out split; there are no demonstrations.
    """

    asked: tuple[Question, ...]
    rows: tuple[tuple[int, ...], ...]
    longest: int
    spell: Callable[[np.ndarray], str]
    end: int = END
    pad: int = PAD

    def __post_init__(self):
        """Refuse a task without training questions; a response may be longer than one of the lab's."""
        if not 0 <= self.held_out_size < len(self.rows):
            raise ValueError(f"{self.held_out_size} held-out of {len(self.rows)} questions of one length")

    @property
    def problem_count(self) -> int:
        """Number of questions."""
        return len(self.asked)

    @property
    def response_length(self) -> int:
        """Longest response, its end token included."""
        return self.longest

    @property
    def prompt_length(self) -> int:
        """Length of every question in tokens."""
        return len(self.rows[0])

    def problem(self, number: int) -> str:
        """Return a question."""
        return self.asked[number].text

    def prompt_set(self, split: str = "train") -> np.ndarray:
        """Return all prompts of a split, int32 `[size, P]`."""
        lookup(dict.fromkeys(SPLITS), split, "split")
        rows = np.asarray(self.rows, np.int32)
        return rows[self.held_out_size :] if split == "train" else rows[: self.held_out_size]

    def check(self, tokens: Array) -> Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the reward of `tokens [..., P + T]`, what stands before the first end token."""
        if isinstance(tokens, Tracer):
            raise ValueError("texts are scored outside compiled programs; sample with engine_rollout")
        rows = np.asarray(tokens)
        earned = [self._earned(row) for row in rows.reshape(-1, rows.shape[-1])]
        return jnp.asarray(np.asarray(earned, np.float32).reshape(rows.shape[:-1]))

    def _earned(self, row: np.ndarray) -> float:
        response = row[self.prompt_length :]
        said = response[: np.argmax(np.append(response, self.end) == self.end)]
        return self._by_row[tuple(row[: self.prompt_length].tolist())].reward(self.spell(said))

    @cached_property
    def _by_row(self) -> dict[tuple[int, ...], Question]:
        return dict(zip(self.rows, self.asked, strict=True))

    def reward(self, prompt: Array, response: Array) -> Array:  # noqa: ARG002 - it refuses
        """Refuse: only whole batches are scored, by `check`."""
        raise ValueError("a text has no reward on the device; see check")

    def answer(self, key: Array, prompt: Array) -> Array:  # noqa: ARG002 - it refuses
        """Refuse: questions come without demonstrations."""
        raise ValueError("questions have no demonstrations, so no policy can be warm-started on them")


def text_task(
    asked: Sequence[Question],
    longest: int,
    *,
    encode: Callable[[str], np.ndarray] = encode,
    decode: Callable[[np.ndarray], str] = decode,
    end: int = END,
    pad: int = PAD,
    held_out: int = 0,
) -> TextTask:
    """Return questions as a task with responses of up to `longest` tokens.

    `encode` and `decode` are the tokenizer's, `end` and `pad` its tokens; by default those of the lab.
    Engines read rows of one length: questions of another length than the commonest, in tokens, are left out.
    Raises `ValueError` when none is left beside the `held_out`.
    """
    rows = [tuple(int(token) for token in encode(question.text)) for question in asked]
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    kept = [(question, row) for question, row in zip(asked, rows, strict=True) if len(row) == width]
    return TextTask(
        asked=tuple(question for question, _ in kept),
        rows=tuple(row for _, row in kept),
        longest=longest,
        spell=decode,
        end=end,
        pad=pad,
        held_out_size=held_out,
        train_size=len(kept) - held_out,
    )
