"""Detect padding that no mask marks: both log-probs exactly 0 at the end or the begin of rows."""

from dataclasses import replace

import numpy as np

from simlab.diagnosis.log import Problem, TokenLog

SHORTEST = 2
"""Shortest run of zeros that counts as padding; a token of probability 1 in both engines is one zero."""


def drop_padding(log: TokenLog, file: str) -> tuple[TokenLog, list[Problem]]:
    """Return the log with padding masked, and one problem that counts it.

    Runs of zeros at the ends of rows are padding if they hold one token id, or, without ids, if most rows
    are equally long.
    """
    # Only tokens that the loss would read: a mask that leaves the padding out needs no help.
    zero = (log.logp_train == 0) & (log.logp_infer == 0) & log.mask
    starts = np.cumsum(log.lengths) - log.lengths
    row = np.repeat(np.arange(log.num_sequences), log.lengths)
    index = np.arange(len(zero)) - starts[row]
    first, last = log.lengths.copy(), np.full(log.num_sequences, -1)
    kept = np.flatnonzero(~zero)
    np.minimum.at(first, row[kept], index[kept])
    np.maximum.at(last, row[kept], index[kept])
    leading = np.where(first >= SHORTEST, first, 0)
    trailing = np.where(log.lengths - 1 - last >= SHORTEST, log.lengths - 1 - last, 0)
    padded = (index < leading[row]) | (index >= (log.lengths - trailing)[row])
    if not padded.any() or not _looks_padded(log, padded):
        return log, []
    rows = int(((leading > 0) | (trailing > 0)).sum())
    reason = (
        f"{padded.sum():,} tokens at the ends of {rows:,} rows have both log-probs exactly 0 and no mask: "
        "dropped as padding"
    )
    return replace(log, mask=log.mask & ~padded), [Problem(file, None, reason)]


def _looks_padded(log: TokenLog, padded: np.ndarray) -> bool:
    if log.ids is not None:
        return len(np.unique(log.ids[padded])) == 1
    return bool(np.bincount(log.lengths).max() * 2 > log.num_sequences)
