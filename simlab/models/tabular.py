"""The tabular policy: one softmax row per context, over sequences that can all be written down.

A policy is a table of logits `[K, V]`: K contexts, V tokens. A `SequenceSpace` says which row each
token of each sequence is drawn from. The functions take tables of numpy (float64, exact statements)
or of JAX (traced, for gradients by autodiff): both speak the array API.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

Prefix = tuple[int, ...]


@dataclass(frozen=True)
class SequenceSpace:
    """S sequences of at most T tokens, and the table row that each token is drawn from.

    `tokens`, `contexts` are int `[S, T]`, `mask` is bool `[S, T]` (False after the end token);
    masked entries point at token 0 of context 0. `prefixes[k]` is the prefix that names context k.
    """

    tokens: Int[np.ndarray, "S T"]
    contexts: Int[np.ndarray, "S T"]
    mask: Bool[np.ndarray, "S T"]
    vocabulary: int
    prefixes: tuple[Prefix, ...]

    @property
    def table_shape(self) -> tuple[int, int]:
        """`(K, V)`: the shape of a policy's table on this space."""
        return len(self.prefixes), self.vocabulary

    @property
    def lengths(self) -> Int[np.ndarray, " S"]:
        """Number of tokens of each sequence, `[S]`."""
        return self.mask.sum(1)


def enumerate_sequences(
    vocabulary: int,
    length: int,
    *,
    end: int | None = None,
    memory: int | None = None,
    same: Mapping[Prefix, Prefix] | None = None,
) -> SequenceSpace:
    """Return all sequences of `length` tokens, or ended earlier by the token `end`, in lexicographic order.

    Contexts are prefixes. `memory` shares them: only the last `memory` tokens count (0: one row for
    all, 1: a Markov chain). `same` maps prefixes to the prefix whose context they share, so that
    equivalent answers and templates exist.

    Raises:
        ValueError: For sizes below 1, more than 2^24 sequences, and an end token outside the vocabulary.
    """
    if vocabulary < 1 or length < 1:
        raise ValueError(f"vocabulary and length must be at least 1, got {vocabulary} and {length}")
    if vocabulary**length > 2**24:
        raise ValueError(f"{vocabulary}^{length} sequences are too many to enumerate; at most 2^24")
    if end is not None and not 0 <= end < vocabulary:
        raise ValueError(f"the end token must lie in 0..{vocabulary - 1}, got {end}")
    grid = np.indices((vocabulary,) * length, dtype=np.int32).reshape(length, -1).T
    mask = np.ones(grid.shape, bool)
    if end is not None:
        mask[:, 1:] = ~np.logical_or.accumulate(grid[:, :-1] == end, axis=1)
        # One copy of each ended sequence: the one whose tail is all zeros.
        keep = ~(np.where(mask, 0, grid) != 0).any(1)
        grid, mask = grid[keep], mask[keep]
    return _with_contexts(np.ascontiguousarray(grid), mask, vocabulary, memory, dict(same or {}))


def list_sequences(sequences: Sequence[Prefix], vocabulary: int) -> SequenceSpace:
    """Return a space of the given sequences only, of any lengths, in the given order.

    Raises:
        ValueError: For no sequence, an empty one, and tokens outside the vocabulary.
    """
    if not sequences or not all(sequences):
        raise ValueError("list at least one sequence, each of at least one token")
    if not all(0 <= token < vocabulary for sequence in sequences for token in sequence):
        raise ValueError(f"tokens must lie in 0..{vocabulary - 1}, got {sequences}")
    longest = max(map(len, sequences))
    tokens = np.zeros((len(sequences), longest), np.int32)
    mask = np.zeros(tokens.shape, bool)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = True
    return _with_contexts(tokens, mask, vocabulary, None, {})


def _with_contexts(tokens, mask, vocabulary: int, memory: int | None, same: dict) -> SequenceSpace:
    """Number the contexts in order of first use, one position after the other."""
    contexts = np.zeros(tokens.shape, np.int32)
    number: dict[Prefix, int] = {}
    for t in range(tokens.shape[1]):
        start = 0 if memory is None else max(0, t - memory)
        seen = tokens[mask[:, t], start:t]
        # Prefixes as numbers in base V: unique on integers is far faster than on rows.
        code = seen.astype(np.int64) @ (vocabulary ** np.arange(t - start, dtype=np.int64)[::-1])
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        keys = [tuple(map(int, seen[row])) for row in first]
        rows = [number.setdefault(same.get(key, key), len(number)) for key in keys]
        contexts[mask[:, t], t] = np.asarray(rows, np.int32)[inverse]
    return SequenceSpace(tokens, contexts, mask, vocabulary, tuple(number))


def log_softmax(table):
    """Return the log-probabilities `[K, V]` of a table of logits, in nats; -inf logits stay -inf."""
    xp = table.__array_namespace__()
    shifted = table - xp.max(table, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def token_values(space: SequenceSpace, rows):
    """Return the entry of `rows` `[K, V]` for each token of each sequence, `[S, T]`; 0 where masked.

    For log-probabilities `rows` this is `logp[s, t]` of the sampled tokens.
    """
    xp = rows.__array_namespace__()
    flat = space.contexts * space.vocabulary + space.tokens
    return xp.where(space.mask, rows.reshape(-1)[flat], xp.zeros((), dtype=rows.dtype))


def sum_of_scores(
    space: SequenceSpace, probs: Float[np.ndarray, "K V"], coefficients: Float[np.ndarray, "S T"]
) -> Float[np.ndarray, "K V"]:
    """Return `sum_{s,t} c[s,t] grad log pi(token | context)` in the logits, exactly, `[K, V]`.

    The score of token a in context h is `e_a - pi(.|h)` in row h and zero elsewhere, so one scatter
    of the coefficients `[S, T]` is the gradient. `probs` `[K, V]` are the policy's.
    """
    flat = (space.contexts * space.vocabulary + space.tokens)[space.mask]
    size = space.table_shape[0] * space.vocabulary
    mass = np.bincount(flat, coefficients[space.mask], minlength=size).reshape(space.table_shape)
    return mass - mass.sum(1, keepdims=True) * probs


def square_score_norms(
    space: SequenceSpace, probs: Float[np.ndarray, "K V"], coefficients: Float[np.ndarray, "S T"]
) -> Float[np.ndarray, " S"]:
    """Return `|sum_t c[s,t] grad log pi|^2` for each sequence, `[S]`, also when contexts repeat in it."""
    own = token_values(space, probs)
    collision = (probs**2).sum(1)[space.contexts]
    weights = np.where(space.mask, coefficients, 0.0)
    total = (weights**2 * (1 - 2 * own + collision)).sum(1)
    for t in range(space.tokens.shape[1]):
        for u in range(t):
            # <e_a - pi, e_b - pi> in one row; zero in different rows.
            inner = (space.tokens[:, t] == space.tokens[:, u]) - own[:, t] - own[:, u] + collision[:, t]
            shared = space.contexts[:, t] == space.contexts[:, u]
            total += 2 * np.where(shared, weights[:, t] * weights[:, u] * inner, 0.0)
    return total


def sequence_scores(space: SequenceSpace, probs: Float[np.ndarray, "K V"]) -> Float[np.ndarray, "S KV"]:
    """Return grad log pi of each sequence, dense `[S, K V]`: for a few thousand sequences."""
    scores = np.zeros((len(space.tokens), *space.table_shape))
    rows = np.arange(len(space.tokens))
    for t in range(space.tokens.shape[1]):
        on = space.mask[:, t]
        contexts = space.contexts[on, t]
        np.add.at(scores, (rows[on], contexts), -probs[contexts])
        np.add.at(scores, (rows[on], contexts, space.tokens[on, t]), 1.0)
    return scores.reshape(len(rows), -1)
