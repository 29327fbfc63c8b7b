"""What a task is: prompts, a checker, and demonstrations, all on the device."""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from simlab.core.ranges import SEED
from simlab.tasks.vocabulary import DIGIT, END, PAD, encode

SPLITS = ("train", "held_out")
LONGEST_RESPONSE = 128


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A verifiable task over `vocabulary`, static and hashable.

    A subclass says how problem number i is written, what a response earns, and what a right answer is, each
    for one sequence. The prompts are a finite set of different problems, drawn once by `seed`; a smaller
    training set is a part of a larger one, beside the same held-out prompts.

    Raises `ValueError` when there are fewer problems than asked for, or responses would be too long.
    """

    difficulty: int = 3
    train_size: int = 4096
    held_out_size: int = 512
    seed: Annotated[int, SEED] = 0

    def __post_init__(self):
        """Refuse sizes that the task does not have."""
        if self.difficulty < 1:
            raise ValueError(f"bad difficulty {self.difficulty}; allowed: an integer >= 1")
        if self.response_length > LONGEST_RESPONSE:
            raise ValueError(
                f"a response of {self.response_length} tokens at difficulty {self.difficulty}; "
                f"allowed: up to {LONGEST_RESPONSE}"
            )
        asked = self.train_size + self.held_out_size
        if min(self.train_size, self.held_out_size) < 1 or asked > self.problem_count:
            raise ValueError(
                f"{self.train_size} training and {self.held_out_size} held-out prompts; "
                f"allowed: at least 1 each, at most {self.problem_count} together"
            )

    @property
    @abstractmethod
    def problem_count(self) -> int:
        """Number of different problems."""

    @property
    @abstractmethod
    def response_length(self) -> int:
        """Longest response, its end token included: the T of `[B, T]`."""

    @abstractmethod
    def problem(self, number: int) -> str:
        """Return the prompt of problem `number` as text, equally long for all."""

    @abstractmethod
    def reward(self, prompt: Array, response: Array) -> Array:
        """Return the reward in [0, 1] of one `response [T]` to `prompt [P]`, up to its first end token."""

    @abstractmethod
    def answer(self, key: Array, prompt: Array) -> Array:
        """Return one right response `[T]` to `prompt [P]`, ended and padded, drawn if there are several."""

    @property
    def prompt_length(self) -> int:
        """Length P of every prompt."""
        return len(self.problem(0))

    def prompt_set(self, split: str = "train") -> np.ndarray:
        """Return all prompts of a split, int32 `[size, P]`."""
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r}; allowed: {', '.join(SPLITS)}")
        everything = _prompts_of(self)
        return everything[self.held_out_size :] if split == "train" else everything[: self.held_out_size]

    def prompts(self, key: Array, count: int, split: str = "train") -> Array:
        """Return `count` prompts of a split, drawn with replacement, int32 `[count, P]`."""
        prompts = jnp.asarray(self.prompt_set(split))
        return prompts[draw(key, (count,), 0, len(prompts))]

    @partial(jax.jit, static_argnums=0)
    def check(self, tokens: Array) -> Array:
        """Return the reward of `tokens [..., P + T]`, prompt and response, float32 `[...]`."""
        if tokens.shape[-1] != self.prompt_length + self.response_length:
            raise ValueError(
                f"{tokens.shape[-1]} tokens; allowed: {self.prompt_length} of the prompt and "
                f"{self.response_length} of the response"
            )
        check = jnp.vectorize(
            lambda row: self.reward(row[: self.prompt_length], row[self.prompt_length :]), signature="(n)->()"
        )
        return check(tokens)

    @partial(jax.jit, static_argnums=0)
    def demonstrations(self, key: Array, prompts: Array, mistakes: Array | float = 0.0) -> Array:
        """Return one response to each of `prompts [n, P]`, int32 `[n, T]`.

        Every digit of a response is replaced by a random one with probability `mistakes`.
        """
        key_answer, key_where, key_digit = jax.random.split(key, 3)
        answers = jax.vmap(self.answer)(jax.random.split(key_answer, len(prompts)), prompts)
        wrong = jax.random.uniform(key_where, answers.shape) < mistakes
        digits = draw(key_digit, answers.shape, DIGIT, DIGIT + 10)
        return jnp.where(wrong & is_digit(answers), digits, answers)


@lru_cache(maxsize=64)
def _prompts_of(task: Task) -> np.ndarray:
    # Held-out problems come first: they, and a prefix of the others, stay when the training set is cut.
    generator = random.Random(task.seed)
    numbers: dict[int, None] = {}
    while len(numbers) < task.held_out_size + task.train_size:
        numbers[generator.randrange(task.problem_count)] = None
    return np.stack([encode(task.problem(number)) for number in numbers])


def draw(key: Array, shape: tuple[int, ...], low: Array | int, high: Array | int) -> Array:
    """Return integers in [low, high), uniform up to a bias of (high - low) / 2^32, int32 `shape`.

    `jax.random.randint` spends three times the random bits, and compile time, on removing that bias.
    """
    span = jnp.asarray(high - low).astype(jnp.uint32)
    return low + (jax.random.bits(key, shape) % span).astype(jnp.int32)


def is_digit(tokens: Array) -> Array:
    """Return whether each token is a digit."""
    return (tokens >= DIGIT) & (tokens < DIGIT + 10)


def number_of(tokens: Array) -> Array:
    """Return the number that the digits `tokens [n]` write, most significant first, int32 scalar."""
    powers = 10 ** np.arange(tokens.shape[0] - 1, -1, -1, dtype=np.int32)
    return jnp.sum((tokens - DIGIT) * powers)


def digits_of(number: Array, width: int) -> Array:
    """Return the `width` digits of `number` as tokens, most significant first, with leading zeros."""
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int32)
    return number // powers % 10 + DIGIT


def ended(tokens: Array, length: int) -> Array:
    """Return `tokens` with an end token behind them, padded to `length`."""
    rest = [END] + [PAD] * (length - tokens.shape[0] - 1)
    return jnp.concatenate([tokens, np.asarray(rest, np.int32)])


def says(response: Array, answer: Array) -> Array:
    """Return whether `response [T]` equals the ended `answer [T]` up to its end, a boolean scalar."""
    return jnp.all((response == answer) | (answer == PAD))
