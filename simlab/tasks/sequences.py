"""Sequences: sorting, and a recurrence that pays for every further term, or up to the first mistake."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from simlab.tasks.task import Task, draw, ended, says
from simlab.tasks.vocabulary import DIGIT, END, PAD


@dataclass(frozen=True, kw_only=True)
class Sorting(Task):
    """`difficulty` digits to sort: `50213>` `01235$`."""

    difficulty: int = 5

    @property
    def problem_count(self) -> int:
        """Number of strings of digits."""
        return 10**self.difficulty

    @property
    def response_length(self) -> int:
        """Digits and the end token."""
        return self.difficulty + 1

    def problem(self, number: int) -> str:
        """Return the digits as text."""
        return f"{number:0{self.difficulty}d}>"

    def reward(self, prompt: Array, response: Array) -> Array:
        """Return 1 for the digits in ascending order, else 0."""
        return says(response, self._right(prompt)).astype(jnp.float32)

    def answer(self, key: Array, prompt: Array) -> Array:  # noqa: ARG002 - there is one right answer
        """Return the digits in ascending order."""
        return self._right(prompt)

    def _right(self, prompt: Array) -> Array:
        return ended(jnp.sort(prompt[: self.difficulty]), self.response_length)


@dataclass(frozen=True, kw_only=True)
class Recurrence(Task):
    """Length grows with skill: x_t = (x_{t-1} + x_{t-4}) mod 10 from four given digits, as far as one dares.

    n right terms earn n / difficulty, any wrong one earns nothing. So the best length rises with the
    reliability of a term; demonstrations are short, at most a quarter of `difficulty`.
    """

    difficulty: int = 32
    ORDER = 4

    @property
    def problem_count(self) -> int:
        """Number of beginnings."""
        return 10**self.ORDER

    @property
    def response_length(self) -> int:
        """At most `difficulty` terms and the end token."""
        return self.difficulty + 1

    def problem(self, number: int) -> str:
        """Return the four digits as text."""
        return f"{number:0{self.ORDER}d}>"

    def terms(self, prompt: Array) -> Array:
        """Return the first `difficulty` terms as tokens."""

        def advance(last, _):
            term = (last[-1] + last[0]) % 10
            return jnp.append(last[1:], term), term

        _, terms = lax.scan(advance, prompt[: self.ORDER] - DIGIT, None, length=self.difficulty)
        return terms + DIGIT

    def reward(self, prompt: Array, response: Array) -> Array:
        """Return the share of `difficulty` that is right, 0 with any wrong term or without an end."""
        ends = response == END
        length = jnp.argmax(ends)
        right = (response[:-1] == self.terms(prompt)) | (np.arange(self.difficulty) >= length)
        return jnp.where(jnp.any(ends) & jnp.all(right), length / self.difficulty, 0.0).astype(jnp.float32)

    def answer(self, key: Array, prompt: Array) -> Array:
        """Return 1 to `difficulty / 4` terms."""
        length = draw(key, (), 1, max(1, self.difficulty // 4) + 1)
        places = np.arange(self.response_length)
        terms = jnp.append(self.terms(prompt), END)
        return jnp.where(places < length, terms, jnp.where(places == length, END, PAD))


@dataclass(frozen=True, kw_only=True)
class Chain(Recurrence):
    """A long response whose first mistake ends what it earns: all terms of the recurrence.

    n right terms before the first wrong one earn n / difficulty. A policy that was taught with mistakes is
    uncertain at every token, also behind its own.
    """

    difficulty: int = 64

    def reward(self, prompt: Array, response: Array) -> Array:
        """Return the share of `difficulty` before the first mistake, 0 without an end."""
        right = jnp.cumprod(response[:-1] == self.terms(prompt))
        return jnp.where(jnp.any(response == END), jnp.mean(right, dtype=jnp.float32), 0.0)

    def answer(self, key: Array, prompt: Array) -> Array:  # noqa: ARG002 - there is one right answer
        """Return all terms."""
        return ended(self.terms(prompt), self.response_length)
