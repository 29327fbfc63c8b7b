"""Addition: with scratch tokens, with two spellings of the answer, with a template around it."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from simlab.tasks.task import Task, digits_of, draw, ended, is_digit, number_of, says
from simlab.tasks.vocabulary import DIGIT, END, LETTER, encode


@dataclass(frozen=True, kw_only=True)
class Sum(Task):
    """Two numbers of `difficulty` digits to add; the answer has one digit more, most significant first."""

    difficulty: int = 3

    def __post_init__(self):
        """Refuse numbers that int32 cannot add."""
        if self.difficulty > 8:
            raise ValueError(f"bad difficulty {self.difficulty}; allowed: 1 to 8 digits")
        super().__post_init__()

    @property
    def problem_count(self) -> int:
        """Number of pairs of numbers."""
        return 10 ** (2 * self.difficulty)

    def problem(self, number: int) -> str:
        """Return the pair as text, such as `034+912=`."""
        first, second = divmod(number, 10**self.difficulty)
        return f"{first:0{self.difficulty}d}+{second:0{self.difficulty}d}="

    def total(self, prompt: Array) -> Array:
        """Return the digits of the sum, int32 `[difficulty + 1]`."""
        width = self.difficulty
        total = number_of(prompt[:width]) + number_of(prompt[width + 1 : 2 * width + 1])
        return digits_of(total, width + 1)


@dataclass(frozen=True, kw_only=True)
class Addition(Sum):
    """The flagship task: up to `scratch` letters of any kind, then the sum, such as `bfa0946$`.

    The letters are free: they earn nothing and cost nothing. Demonstrations draw `a` 15 times of 16, `b` 15
    times of the other 16, and so on, so that rare tokens are sampled at every step; with more noise in them
    the reward teaches too slowly. A policy may write fewer letters; demonstrations write all, so that a digit
    is always as far from those that it depends on.
    """

    scratch: int = 8

    def __post_init__(self):
        """Refuse less than no scratch."""
        if self.scratch < 0:
            raise ValueError(f"bad scratch {self.scratch}; allowed: 0 or more letters")
        super().__post_init__()

    @property
    def response_length(self) -> int:
        """Scratch, digits and the end token."""
        return self.scratch + self.difficulty + 2

    def reward(self, prompt: Array, response: Array) -> Array:
        """Return 1 for the sum behind at most `scratch` letters, else 0."""
        letters = (response >= LETTER) & (response < LETTER + 10)
        used = jnp.sum(jnp.cumprod(letters.astype(jnp.int32)))
        answer = ended(self.total(prompt), self.response_length)
        return says(jnp.roll(response, -used), answer).astype(jnp.float32)

    def answer(self, key: Array, prompt: Array) -> Array:
        """Return `scratch` random letters and the sum."""
        # A quarter of the number of leading zeros of random bits: k with probability 15/16^(k + 1).
        letters = LETTER + lax.clz(jax.random.bits(key, (self.scratch,))).astype(jnp.int32) // 4
        return ended(jnp.concatenate([letters, self.total(prompt)]), self.response_length)


@dataclass(frozen=True, kw_only=True)
class TwoSpellings(Sum):
    """Equivalent right answers: the sum in digits or in letters (a for 0), all in one spelling.

    Demonstrations take either with probability 1/2, so a drift of the odds is the doing of the training.
    """

    difficulty: int = 2

    @property
    def response_length(self) -> int:
        """Digits and the end token."""
        return self.difficulty + 2

    def reward(self, prompt: Array, response: Array) -> Array:
        """Return 1 for either spelling of the sum, else 0."""
        total = self.total(prompt)
        right = [
            says(response, ended(spelled, self.response_length)) for spelled in (total, _in_letters(total))
        ]
        return (right[0] | right[1]).astype(jnp.float32)

    def answer(self, key: Array, prompt: Array) -> Array:
        """Return the sum in one of its spellings."""
        total = self.total(prompt)
        return ended(jnp.where(jax.random.bernoulli(key), _in_letters(total), total), self.response_length)


def _in_letters(digits: Array) -> Array:
    return digits - DIGIT + LETTER


@dataclass(frozen=True, kw_only=True)
class Template(Sum):
    """Shared template tokens: right and wrong answers alike have to begin with the same word."""

    difficulty: int = 2
    template: str = "iadd:"

    @property
    def response_length(self) -> int:
        """Template, digits and the end token."""
        return len(self.template) + self.difficulty + 2

    def reward(self, prompt: Array, response: Array) -> Array:
        """Return 1 for the template and the sum, else 0."""
        return says(response, self._right(prompt)).astype(jnp.float32)

    def answer(self, key: Array, prompt: Array) -> Array:  # noqa: ARG002 - there is one right answer
        """Return the template and the sum."""
        return self._right(prompt)

    def _right(self, prompt: Array) -> Array:
        return ended(jnp.concatenate([encode(self.template), self.total(prompt)]), self.response_length)


@dataclass(frozen=True, kw_only=True)
class DigitSum(Task):
    """Many solutions: `difficulty` digits that complete two given ones to a given sum: `17:42=` `830$`."""

    difficulty: int = 3
    train_size: int = 2048

    def __post_init__(self):
        """Refuse sums that two digits cannot write."""
        if self.difficulty > 9:
            raise ValueError(f"bad difficulty {self.difficulty}; allowed: 1 to 9 digits")
        super().__post_init__()

    @property
    def problem_count(self) -> int:
        """Number of pairs of digits times sums of the missing ones."""
        return 100 * (9 * self.difficulty + 1)

    @property
    def response_length(self) -> int:
        """Digits and the end token."""
        return self.difficulty + 1

    def problem(self, number: int) -> str:
        """Return the sum and the two given digits as text."""
        rest, given = divmod(number, 100)
        return f"{rest + given // 10 + given % 10:02d}:{given:02d}="

    def missing(self, prompt: Array) -> Array:
        """Return what the digits of the response have to add up to, int32 scalar."""
        return number_of(prompt[:2]) - jnp.sum(prompt[3:5] - DIGIT)

    def reward(self, prompt: Array, response: Array) -> Array:
        """Return 1 for `difficulty` digits of the missing sum and an end, else 0."""
        digits = response[: self.difficulty]
        written = jnp.all(is_digit(digits)) & (response[self.difficulty] == END)
        return (written & (jnp.sum(digits - DIGIT) == self.missing(prompt))).astype(jnp.float32)

    def answer(self, key: Array, prompt: Array) -> Array:
        """Return digits with the missing sum, each uniform over what the others can still make up for."""

        def next_digit(missing, place):
            others = 9 * (self.difficulty - 1 - place)
            low, high = jnp.maximum(0, missing - others), jnp.minimum(9, missing)
            digit = draw(jax.random.fold_in(key, place), (), low, high + 1)
            return missing - digit, digit

        _, digits = lax.scan(next_digit, self.missing(prompt), np.arange(self.difficulty, dtype=np.int32))
        return ended(digits + DIGIT, self.response_length)
