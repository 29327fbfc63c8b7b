"""What every reader gives and every detector reads: the tokens of many sequences, one after another."""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

LOWEST = -100.0
"""Log-probabilities are cut off here; at or below it the probability counts as zero."""


class Problem(NamedTuple):
    """A row that was left out (row None: the rest of the file), and why. Rows count from 1."""

    file: str
    row: int | None
    reason: str

    def __str__(self) -> str:
        """`file, row 3: reason`, without what would move a terminal's cursor."""
        return printable(f"{self.file}{'' if self.row is None else f', row {self.row}'}: {self.reason}")


def printable(text: str) -> str:
    """Return `text`, which a stranger may have written, with ? for control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


@dataclass(frozen=True)
class TokenLog:
    """Sampled tokens of a run: arrays over tokens [N], or over sequences [S] whose `lengths` sum to N.

    - `logp_train`, `logp_infer`, `logp` [N]: theta_old in the training and inference engine, theta in the
      training engine; nats, at least `LOWEST`. `mask` [N]: the tokens that were trained on.
    - `ids`, `advantages` [N]; `experts_train`, `experts_infer` [N, layers x `top_k`]: routed experts.
    - `step`, `group`, `rewards`, `version`, `update`, `micro_batch` [S]: see `schema.COLUMNS`.

    Whatever is None was not logged.
    """

    lengths: np.ndarray
    logp_train: np.ndarray
    logp_infer: np.ndarray
    mask: np.ndarray
    step: np.ndarray
    logp: np.ndarray | None = None
    ids: np.ndarray | None = None
    advantages: np.ndarray | None = None
    experts_train: np.ndarray | None = None
    experts_infer: np.ndarray | None = None
    top_k: int = 1
    group: np.ndarray | None = None
    rewards: np.ndarray | None = None
    version: np.ndarray | None = None
    update: np.ndarray | None = None
    micro_batch: np.ndarray | None = None

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    def of_token(self, per_sequence: np.ndarray) -> np.ndarray:
        """Spread an array over sequences [S] to their tokens [N]."""
        return np.repeat(per_sequence, self.lengths)

    def real(self) -> "TokenLog":
        """Return the log without masked tokens; sequences that keep none stay, with length 0."""
        lengths = np.bincount(self.of_token(np.arange(self.sequences))[self.mask], minlength=self.sequences)
        return replace(self._taken(self.mask, slice(None)), lengths=lengths)

    def where(self, chosen: np.ndarray) -> "TokenLog":
        """Return the sequences that `chosen` [S] marks."""
        return self._taken(self.of_token(chosen), chosen)

    def _taken(self, tokens: np.ndarray, sequences: np.ndarray | slice) -> "TokenLog":
        taken = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                # Every array is over tokens or over sequences; which one is a matter of its name.
                taken[field.name] = value[tokens] if field.name in OVER_TOKENS else value[sequences]
        return replace(self, **taken)


OVER_TOKENS = frozenset(
    ("logp_train", "logp_infer", "logp", "mask", "ids", "advantages", "experts_train", "experts_infer")
)


def log_rho(log: TokenLog) -> np.ndarray:
    """Log of the mismatch ratio of each token [N], clamped to +-20 as everywhere."""
    return np.clip(log.logp_train - log.logp_infer, -20.0, 20.0)
