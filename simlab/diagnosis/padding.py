"""Detect padding and prompts that no mask marks: both log-probs exactly 0 at the end or the begin of rows."""

from dataclasses import replace

import numpy as np

from simlab.diagnosis.log import Problem, TokenLog

SHORTEST = 2
"""Shortest run of zeros that counts as padding; a token of probability 1 in both engines is one zero."""
NEARLY_ALL = 0.9
"""Fraction of the rows that must begin with zeros for these to be prompts."""


def drop_padding(log: TokenLog, file: str) -> tuple[TokenLog, list[Problem]]:
    """Return the log with padding and prompts masked, and one problem per end of the rows that counts them.

    Runs of zeros are dropped if they hold one token id, if nearly all rows begin with them, or, without
    ids, if most rows are equally long. Others stay, with a problem that names them.
    """
    # Only tokens that the loss would read: a mask that leaves the padding out needs no help.
    zero = (log.logp_train == 0) & (log.logp_infer == 0) & log.mask
    if not zero.any():
        return log, []
    starts = np.cumsum(log.lengths) - log.lengths
    row = np.repeat(np.arange(log.num_sequences), log.lengths)
    index = np.arange(len(zero)) - starts[row]
    first, last = log.lengths.copy(), np.full(log.num_sequences, -1)
    kept = np.flatnonzero(~zero)
    np.minimum.at(first, row[kept], index[kept])
    np.maximum.at(last, row[kept], index[kept])
    trailing = log.lengths - 1 - last
    leading = np.where(first >= SHORTEST, first, 0)
    trailing = np.where(trailing >= SHORTEST, trailing, 0)
    ends = {
        "begins": (index < leading[row], leading > 0),
        "ends": (index >= (log.lengths - trailing)[row], trailing > 0),
    }
    mask, problems = log.mask, []
    for name, (inside, rows) in ends.items():
        if not inside.any():
            continue
        everywhere = name == "begins" and rows.mean() >= NEARLY_ALL
        is_padding = everywhere or _looks_padded(log, inside)
        verdict = (
            "dropped as padding or prompts" if is_padding else "kept, as no sign of padding; a mask decides"
        )
        reason = (
            f"{inside.sum():,} tokens at the {name} of {rows.sum():,} rows have both log-probs exactly 0 "
            f"and no mask: {verdict}"
        )
        problems.append(Problem(file, None, reason))
        if is_padding:
            mask = mask & ~inside
    return replace(log, mask=mask), problems


def _looks_padded(log: TokenLog, padded: np.ndarray) -> bool:
    if log.ids is not None:
        return len(np.unique(log.ids[padded])) == 1
    return bool(np.bincount(log.lengths).max() * 2 > log.num_sequences)
