"""Addition tasks: with scratch letters, with two spellings of the answer, with a template."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

from simlab.tasks.task import (
    Prompt,
    Response,
    Task,
    draw_integers,
    end_response,
    is_digit,
    matches_answer,
    parse_digits,
    write_digits,
)
from simlab.tasks.vocabulary import DIGIT, EOS_TOKEN_ID, LETTER, encode


@dataclass(frozen=True, kw_only=True)
class Sum(Task):
    """Two numbers of `difficulty` digits to add; the answer has one digit more, most significant first."""

    difficulty: int = 3

    def __post_init__(self):
        """Reject numbers that int32 cannot add."""
        if self.difficulty > 8:
            raise ValueError(f"difficulty must be 1 to 8 digits, got {self.difficulty}.")
        super().__post_init__()

    @property
    def problem_count(self) -> int:
        """Number of pairs of numbers."""
        return 10 ** (2 * self.difficulty)

    @property
    def response_length(self) -> int:
        """Digits and the end token."""
        return self.difficulty + 2

    def problem(self, number: int) -> str:
        """Return the pair as text, such as `034+912=`."""
        first, second = divmod(number, 10**self.difficulty)
        return f"{first:0{self.difficulty}d}+{second:0{self.difficulty}d}="

    def total(self, prompt: Prompt) -> Int[Array, " digits"]:
        """Return the digits of the sum, int32 `[difficulty + 1]`."""
        n = self.difficulty
        total = parse_digits(prompt[:n]) + parse_digits(prompt[n + 1 : 2 * n + 1])
        return write_digits(total, n + 1)


@dataclass(frozen=True, kw_only=True)
class Addition(Sum):
    """The flagship task: up to `scratch` letters from a to j, then the sum, such as `bfa0946$`.

    Which letters they are does not change the reward. Demonstrations draw `a` with probability 15/16, else
    `b` with probability 15/16, and so on, so that every step samples rare tokens; with more noise the policy
    learns too slowly from the reward. A policy may write fewer letters. Demonstrations write all, so that the
    distance of a digit from the digits that it depends on is constant.
    """

    scratch: int = 8

    def __post_init__(self):
        """Reject a negative number of letters."""
        if self.scratch < 0:
            raise ValueError(f"scratch must be 0 or more letters, got {self.scratch}.")
        super().__post_init__()

    @property
    def response_length(self) -> int:
        """Scratch, digits and the end token."""
        return self.scratch + super().response_length

    def reward(self, prompt: Prompt, response: Response) -> Float[Array, ""]:
        """Return 1 for the sum after at most `scratch` letters from a to j, else 0."""
        letters = (response >= LETTER) & (response < LETTER + 10)
        used = jnp.sum(jnp.cumprod(letters.astype(jnp.int32)))
        answer = end_response(self.total(prompt), self.response_length)
        return matches_answer(jnp.roll(response, -used), answer).astype(jnp.float32)

    def answer(self, key: Array, prompt: Prompt) -> Response:
        """Return `scratch` random letters and the sum."""
        # A quarter of the number of leading zeros of random bits: k with probability 15/16^(k + 1).
        letters = LETTER + lax.clz(jax.random.bits(key, (self.scratch,))).astype(jnp.int32) // 4
        return end_response(jnp.concatenate([letters, self.total(prompt)]), self.response_length)


@dataclass(frozen=True, kw_only=True)
class TwoSpellings(Sum):
    """Equivalent correct answers: the sum in digits or in letters (a for 0), all in one spelling.

    Demonstrations use each with probability 1/2, so training alone causes any drift of the odds.
    """

    difficulty: int = 2

    def reward(self, prompt: Prompt, response: Response) -> Float[Array, ""]:
        """Return 1 for either spelling of the sum, else 0."""
        total = self.total(prompt)
        correct = [
            matches_answer(response, end_response(spelled, self.response_length))
            for spelled in (total, _in_letters(total))
        ]
        return (correct[0] | correct[1]).astype(jnp.float32)

    def answer(self, key: Array, prompt: Prompt) -> Response:
        """Return the sum in one of its spellings."""
        total = self.total(prompt)
        return end_response(
            jnp.where(jax.random.bernoulli(key), _in_letters(total), total), self.response_length
        )


def _in_letters(digits: Int[Array, " digits"]) -> Int[Array, " digits"]:
    return digits - DIGIT + LETTER


@dataclass(frozen=True, kw_only=True)
class Template(Sum):
    """Shared template tokens: correct and wrong answers begin with the same word."""

    difficulty: int = 2
    template: str = "iadd:"

    @property
    def response_length(self) -> int:
        """Template, digits and the end token."""
        return len(self.template) + super().response_length

    def answer(self, key: Array, prompt: Prompt) -> Response:  # noqa: ARG002 - there is one correct answer
        """Return the template and the sum."""
        tokens = jnp.concatenate([encode(self.template), self.total(prompt)])
        return end_response(tokens, self.response_length)


@dataclass(frozen=True, kw_only=True)
class DigitSum(Task):
    """Many solutions: `difficulty` digits that complete two given ones to a given sum: `17:42=` `830$`."""

    difficulty: int = 3
    train_size: int = 2048

    def __post_init__(self):
        """Reject sums of more than two digits."""
        if self.difficulty > 9:
            raise ValueError(f"difficulty must be 1 to 9 digits, got {self.difficulty}.")
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
        total, digits = divmod(number, 100)
        return f"{total + digits // 10 + digits % 10:02d}:{digits:02d}="

    def missing(self, prompt: Prompt) -> Int[Array, ""]:
        """Return the sum that the digits of the response must have, int32 scalar."""
        return parse_digits(prompt[:2]) - jnp.sum(prompt[3:5] - DIGIT)

    def reward(self, prompt: Prompt, response: Response) -> Float[Array, ""]:
        """Return 1 for `difficulty` digits with the missing sum and an end token, else 0."""
        digits = response[: self.difficulty]
        written = jnp.all(is_digit(digits)) & (response[self.difficulty] == EOS_TOKEN_ID)
        return (written & (jnp.sum(digits - DIGIT) == self.missing(prompt))).astype(jnp.float32)

    def answer(self, key: Array, prompt: Prompt) -> Response:
        """Return digits with the missing sum, each uniform over the values that leave a feasible rest."""

        def next_digit(missing, position):
            others = 9 * (self.difficulty - 1 - position)
            low, high = jnp.maximum(0, missing - others), jnp.minimum(9, missing)
            digit = draw_integers(jax.random.fold_in(key, position), (), low, high + 1)
            return missing - digit, digit

        _, digits = lax.scan(next_digit, self.missing(prompt), np.arange(self.difficulty, dtype=np.int32))
        return end_response(digits + DIGIT, self.response_length)
