"""Tasks: prompts, verifier and demonstrations, all on the device."""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from simlab.core.arrays import AnyArray
from simlab.core.pytree import Scalar
from simlab.core.ranges import SEED
from simlab.core.streams import draw_array
from simlab.tasks.vocabulary import DIGIT, EOS_TOKEN_ID, PAD_TOKEN_ID, encode

SPLITS = ("train", "held_out")
LONGEST_RESPONSE = 256

Prompt = Int[AnyArray, " P"]
"""Tokens of one prompt."""
Response = Int[AnyArray, " T"]
"""Tokens of one response, ended and padded."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A verifiable task over the tokens of `vocabulary.py`, static and hashable.

    A subclass defines the text of problem i, the reward of a response, and a correct answer, each for one
    sequence. The prompts are a finite set of distinct problems, drawn once by `seed`; a smaller training set
    is a prefix of a larger one, with the same held-out prompts.

    Raises:
        ValueError: There are fewer problems than requested, or responses are too long.
    """

    difficulty: int = 3
    train_size: int = 4096
    held_out_size: int = 512
    seed: Annotated[int, SEED] = 0

    def __post_init__(self):
        """Reject sizes that the task does not have."""
        if self.difficulty < 1:
            raise ValueError(f"difficulty must be an integer >= 1, got {self.difficulty}.")
        if self.response_length > LONGEST_RESPONSE:
            raise ValueError(
                f"response_length must be at most {LONGEST_RESPONSE}, got {self.response_length} at "
                f"difficulty {self.difficulty}."
            )
        sizes = self.train_size, self.held_out_size
        if min(sizes) < 1 or sum(sizes) > self.problem_count:
            raise ValueError(
                f"train_size and held_out_size must be at least 1 each and at most {self.problem_count} "
                f"together, got {self.train_size} and {self.held_out_size}."
            )

    @property
    @abstractmethod
    def problem_count(self) -> int:
        """Number of distinct problems."""

    @property
    @abstractmethod
    def response_length(self) -> int:
        """Maximum length of a response with its end token: the T of `[B, T]`."""

    @abstractmethod
    def problem(self, number: int) -> str:
        """Return the prompt of problem `number` as text; all have the same length."""

    @abstractmethod
    def answer(self, key: Array, prompt: Prompt) -> Response:
        """Return a correct response `[T]` to `prompt [P]`, ended and padded; `key` draws one of several."""

    def reward(self, prompt: Prompt, response: Response) -> Float[Array, ""]:
        """Return the reward in [0, 1] of one `response [T]` to `prompt [P]`, up to its first end token.

        By default 1 for the answer, else 0. Override it if there are several answers.
        """
        return matches_answer(response, self.answer(jax.random.key(0), prompt)).astype(jnp.float32)

    @property
    def prompt_length(self) -> int:
        """Length P of every prompt."""
        return len(self.problem(0))

    def prompt_set(self, split: str = "train") -> np.ndarray:
        """Return all prompts of a split, int32 `[size, P]`.

        Raises:
            ValueError: For an unknown split.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}.")
        prompts = _draw_prompts(self)
        return prompts[self.held_out_size :] if split == "train" else prompts[: self.held_out_size]

    def prompts(self, key: Array, count: int, split: str = "train") -> Int[Array, "count P"]:
        """Return `count` prompts of a split, drawn with replacement, int32 `[count, P]`."""
        prompts = jnp.asarray(self.prompt_set(split))
        return prompts[draw_integers(key, (count,), 0, len(prompts))]

    @partial(jax.jit, static_argnums=0)
    def check(self, tokens: Int[AnyArray, "*B S"]) -> Float[Array, "*B"]:
        """Return the reward of `tokens [..., P + T]`, prompt and response, float32 `[...]`.

        Raises:
            ValueError: For another number of columns.
        """
        if tokens.shape[-1] != self.prompt_length + self.response_length:
            raise ValueError(
                f"tokens must have {self.prompt_length} + {self.response_length} columns (prompt and "
                f"response), got {tokens.shape[-1]}."
            )
        check = jnp.vectorize(
            lambda row: self.reward(row[: self.prompt_length], row[self.prompt_length :]), signature="(n)->()"
        )
        return check(tokens)

    @partial(jax.jit, static_argnums=0)
    def demonstrations(
        self, key: Array, prompts: Int[AnyArray, "n P"], error_rate: Scalar = 0.0
    ) -> Int[Array, "n T"]:
        """Return one response to each of `prompts [n, P]`, int32 `[n, T]`.

        Replaces each digit of a response by a uniform one with probability `error_rate`, so a digit is wrong
        with probability 0.9 `error_rate`.
        """
        key_answer, key_where, key_digit = jax.random.split(key, 3)
        answers = jax.vmap(self.answer)(jax.random.split(key_answer, len(prompts)), prompts)
        wrong = draw_array(jax.random.uniform, key_where, answers.shape) < error_rate
        digits = draw_integers(key_digit, answers.shape, DIGIT, DIGIT + 10)
        return jnp.where(wrong & is_digit(answers), digits, answers)


@lru_cache(maxsize=64)
def _draw_prompts(task: Task) -> np.ndarray:
    # Held-out problems come first, so a smaller training set changes neither them nor its own prefix.
    generator = random.Random(task.seed)
    numbers: dict[int, None] = {}
    while len(numbers) < task.held_out_size + task.train_size:
        numbers[generator.randrange(task.problem_count)] = None
    return np.stack([encode(task.problem(number)) for number in numbers])


def draw_integers(
    key: Array, shape: tuple[int, ...], low: Int[Array, ""] | int, high: Int[Array, ""] | int
) -> Int[Array, "..."]:
    """Return integers in [low, high), uniform up to a bias of (high - low) / 2^32, int32 `shape`.

    `jax.random.randint` needs three times the random bits and compile time to remove that bias.
    """
    span = jnp.asarray(high - low).astype(jnp.uint32)
    return low + (draw_array(jax.random.bits, key, shape) % span).astype(jnp.int32)


def is_digit(tokens: Int[AnyArray, "*S"]) -> Bool[Array, "*S"]:
    """Return whether each token is a digit."""
    return (tokens >= DIGIT) & (tokens < DIGIT + 10)


def parse_digits(tokens: Int[AnyArray, " n"]) -> Int[Array, ""]:
    """Return the number with the digits `tokens [n]`, most significant first, int32 scalar."""
    powers = 10 ** np.arange(tokens.shape[0] - 1, -1, -1, dtype=np.int32)
    return jnp.sum((tokens - DIGIT) * powers)


def write_digits(number: Int[Array, ""], count: int) -> Int[Array, " count"]:
    """Return `number` as `count` digit tokens, most significant first, with leading zeros."""
    powers = 10 ** np.arange(count - 1, -1, -1, dtype=np.int32)
    return number // powers % 10 + DIGIT


def end_response(tokens: Int[AnyArray, " n"], length: int) -> Response:
    """Return `tokens` followed by an end token, padded to `length`."""
    rest = [EOS_TOKEN_ID] + [PAD_TOKEN_ID] * (length - tokens.shape[0] - 1)
    return jnp.concatenate([tokens, np.asarray(rest, np.int32)])


def matches_answer(response: Response, answer: Response) -> Bool[Array, ""]:
    """Return whether `response [T]` equals the ended `answer [T]` up to its end, a boolean scalar."""
    return jnp.all((response == answer) | (answer == PAD_TOKEN_ID))
