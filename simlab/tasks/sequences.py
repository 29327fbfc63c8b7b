"""Sequence tasks: sorting, and two on a recurrence that are rewarded per correct term."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

from simlab.tasks.task import Prompt, Response, Task, end_response
from simlab.tasks.vocabulary import DIGIT, EOS_TOKEN_ID, PAD_TOKEN_ID


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

    def answer(self, key: Array, prompt: Prompt) -> Response:  # noqa: ARG002 - there is one correct answer
        """Return the digits in ascending order."""
        return end_response(jnp.sort(prompt[: self.difficulty]), self.response_length)


@dataclass(frozen=True, kw_only=True)
class Recurrence(Task):
    """Terms of x_t = (x_{t-1} + x_{t-4}) mod 10 from four given digits; the policy chooses how many.

    n correct terms get a reward of n / difficulty, any wrong term gets 0. So the best length grows with the
    reliability of a term. Demonstrations stop after every term with the same probability: most are short, an
    eighth of `difficulty` on average, and a policy that learned from them may stop at any length.
    """

    difficulty: int = 32
    ORDER, SHORTNESS = 4, 8

    @property
    def problem_count(self) -> int:
        """Number of initial digit strings."""
        return 10**self.ORDER

    @property
    def response_length(self) -> int:
        """Up to `difficulty` terms and the end token."""
        return self.difficulty + 1

    def problem(self, number: int) -> str:
        """Return the four digits as text."""
        return f"{number:0{self.ORDER}d}>"

    def terms(self, prompt: Prompt) -> Int[Array, " difficulty"]:
        """Return the first `difficulty` terms as tokens."""

        def advance(last, _):
            term = (last[-1] + last[0]) % 10
            return jnp.append(last[1:], term), term

        _, terms = lax.scan(advance, prompt[: self.ORDER] - DIGIT, None, length=self.difficulty)
        return terms + DIGIT

    def reward(self, prompt: Prompt, response: Response) -> Float[Array, ""]:
        """Return correct terms / `difficulty`, 0 with any wrong term or without an end token."""
        ends = response == EOS_TOKEN_ID
        length = jnp.argmax(ends)
        correct = (response[:-1] == self.terms(prompt)) | (np.arange(self.difficulty) >= length)
        return jnp.where(jnp.any(ends) & jnp.all(correct), length / self.difficulty, 0.0).astype(jnp.float32)

    def answer(self, key: Array, prompt: Prompt) -> Response:
        """Return 1 to `difficulty` terms, geometrically distributed."""
        stop = min(1.0, self.SHORTNESS / self.difficulty)
        length = jnp.minimum(jax.random.geometric(key, stop), self.difficulty)
        positions = np.arange(self.response_length)
        terms = jnp.append(self.terms(prompt), EOS_TOKEN_ID)
        return jnp.where(
            positions < length, terms, jnp.where(positions == length, EOS_TOKEN_ID, PAD_TOKEN_ID)
        )


@dataclass(frozen=True, kw_only=True)
class Chain(Recurrence):
    """All terms of the recurrence, a long response; terms after the first wrong one get no reward.

    n correct terms before the first wrong one get a reward of n / difficulty. A policy trained on
    demonstrations with errors is uncertain at every token, also after its own errors.
    """

    difficulty: int = 64

    def reward(self, prompt: Prompt, response: Response) -> Float[Array, ""]:
        """Return the fraction of `difficulty` before the first wrong term, 0 without an end token."""
        correct = jnp.cumprod(response[:-1] == self.terms(prompt))
        return jnp.where(jnp.any(response == EOS_TOKEN_ID), jnp.mean(correct, dtype=jnp.float32), 0.0)

    def answer(self, key: Array, prompt: Prompt) -> Response:  # noqa: ARG002 - there is one correct answer
        """Return all terms."""
        return end_response(self.terms(prompt), self.response_length)
