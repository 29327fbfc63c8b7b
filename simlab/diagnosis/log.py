"""The record between readers and detectors: the tokens of many sequences, concatenated."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simlab.diagnosis.schema import COLUMNS

LOWEST = -100.0
"""Smallest log-probability, nats; at or below it the probability counts as zero."""


class Problem(NamedTuple):
    """A skipped row (None: the rest of the file) and the reason. Rows count from 1."""

    file: str
    row: int | None
    reason: str

    def __str__(self) -> str:
        """Return `file, row 3: reason` without control characters."""
        return printable(f"{self.file}{'' if self.row is None else f', row {self.row}'}: {self.reason}")


def list_regular_files(folder: Path) -> list[Path]:
    """Return the files below a folder; no links, which could lead out of it."""
    return sorted(file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def printable(text: str) -> str:
    """Return untrusted `text` with ? for control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def index_tokens(lengths: np.ndarray) -> np.ndarray:
    """Return the index of each token [N] in its sequence, for sequences of `lengths` [S]."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


class Sequences:
    """Positions of N tokens in S concatenated sequences, from their `lengths` [S]."""

    lengths: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        """Position of the first token of each sequence, [S]."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def sequence(self) -> np.ndarray:
        """Sequence of each token, [N]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @property
    def index(self) -> np.ndarray:
        """Index of each token in its sequence, [N]."""
        return index_tokens(self.lengths)

    @property
    def from_end(self) -> np.ndarray:
        """Tokens that follow each token in its sequence, [N]."""
        return self.lengths[self.sequence] - 1 - self.index


@dataclass(frozen=True)
class TokenLog(Sequences):
    """The sampled tokens of a run: arrays over tokens [N], or over sequences [S] whose `lengths` sum to N.

    - `logp_train`, `logp_infer` [N]: log-probability at theta_old, nats, at least `LOWEST`.
    - `logp` [N]: log-probability at theta in the training engine.
    - `mask` [N]: whether the token is trained on.
    - `ids`, `advantages` [N]; `is_weight` [N]: the IS weight that multiplies the loss.
    - `experts_train`, `experts_infer` [N, layers x `top_k`]: routed experts.
    - `step`, `group`, `rewards`, `version`, `update`, `micro_batch`, `worker` [S]: see `schema.COLUMNS`.

    None marks a column that the run did not log.
    """

    lengths: np.ndarray
    logp_train: np.ndarray
    logp_infer: np.ndarray
    mask: np.ndarray
    step: np.ndarray
    logp: np.ndarray | None = None
    ids: np.ndarray | None = None
    advantages: np.ndarray | None = None
    is_weight: np.ndarray | None = None
    experts_train: np.ndarray | None = None
    experts_infer: np.ndarray | None = None
    top_k: int = 1
    group: np.ndarray | None = None
    rewards: np.ndarray | None = None
    version: np.ndarray | None = None
    update: np.ndarray | None = None
    micro_batch: np.ndarray | None = None
    worker: np.ndarray | None = None

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    def spread_to_tokens(self, per_sequence: np.ndarray) -> np.ndarray:
        """Repeat values of sequences [S] for their tokens [N]."""
        return np.repeat(per_sequence, self.lengths)

    def drop_masked(self) -> "TokenLog":
        """Return the log without masked tokens; a sequence without tokens stays, with length 0."""
        lengths = np.bincount(self.sequence[self.mask], minlength=self.num_sequences)
        return replace(self.take(self.mask, slice(None)), lengths=lengths)

    def select_sequences(self, chosen: np.ndarray) -> "TokenLog":
        """Return the sequences at which `chosen` [S] is true."""
        return self.take(self.spread_to_tokens(chosen), chosen)

    def take(self, tokens: np.ndarray | slice, sequences: np.ndarray | slice) -> "TokenLog":
        """Return the log with every array over tokens, and every one over sequences, indexed."""
        taken = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                # The name of an array decides whether it is over tokens or over sequences.
                taken[field.name] = value[tokens] if field.name in OVER_TOKENS else value[sequences]
        return replace(self, **taken)


OVER_TOKENS = frozenset(name for name, column in COLUMNS.items() if column.over == "tokens")


def log_rho(log: TokenLog) -> np.ndarray:
    """Return the log of the IS ratio of each token [N], clamped to +-20 as in `simlab.objectives`."""
    return np.clip(log.logp_train - log.logp_infer, -20.0, 20.0)
