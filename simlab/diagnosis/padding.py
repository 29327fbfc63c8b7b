"""Detect padding and prompts that no mask marks.

Both log-probs are exactly 0 at the beginning or the end of rows, or logp_infer repeats one number at the ends
of rows of one length.
"""

from dataclasses import replace

import numpy as np

from simlab.diagnosis.log import Problem, TokenLog

SHORTEST = 2
"""Shortest run of zeros that counts as padding; a token of probability 1 in both engines is one zero."""
MANY = 0.3
"""Fraction of the rows that must end with one repeated number for this to be padding."""
NEARLY_ALL = 0.9
"""Fraction of the rows that must begin with zeros for these to be prompts."""


def drop_padding(log: TokenLog, file: str) -> tuple[TokenLog, list[Problem]]:
    """Return the log with padding and prompts masked, and one problem per end of the rows that counts them.

    Runs of zeros are dropped if they hold one token id, if nearly all rows begin with them, or, without
    ids, if most rows are equally long. Others stay, with a problem that names them.
    """
    log, repeated = _drop_repeated_ends(log, file)
    # Only tokens that the loss would read: a mask that leaves the padding out needs no help.
    zero = (log.logp_train == 0) & (log.logp_infer == 0) & log.mask
    if not zero.any():
        return log, repeated
    row, index = log.sequence, log.index
    first, last = log.lengths.copy(), np.full(log.num_sequences, -1)
    unpadded = np.flatnonzero(~zero)
    np.minimum.at(first, row[unpadded], index[unpadded])
    np.maximum.at(last, row[unpadded], index[unpadded])
    trailing = log.lengths - 1 - last
    leading = np.where(first >= SHORTEST, first, 0)
    trailing = np.where(trailing >= SHORTEST, trailing, 0)
    ends = {
        "begins": (index < leading[row], leading > 0),
        "ends": (index >= (log.lengths - trailing)[row], trailing > 0),
    }
    mask, problems = log.mask, repeated
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


def _drop_repeated_ends(log: TokenLog, file: str) -> tuple[TokenLog, list[Problem]]:
    """Mask ends at which logp_infer repeats one number although the trainer scored the tokens."""
    width = int(log.lengths[0]) if log.num_sequences else 0
    if log.num_sequences < 4 or width <= SHORTEST or (log.lengths != width).any() or not log.mask.all():
        return log, []
    infer, train = (values.reshape(-1, width) for values in (log.logp_infer, log.logp_train))
    values, counts = np.unique(infer[:, -1], return_counts=True)
    value = values[np.argmax(counts)]
    run = np.cumprod(infer[:, ::-1] == value, axis=1)[:, ::-1].astype(bool)
    rows = run.sum(1) >= SHORTEST
    inside = (run & rows[:, None]).ravel()
    is_ragged = len(np.unique(run.sum(1)[rows])) > 1
    is_scored = (train != infer).ravel()[inside].any()
    same_id = log.ids is None or len(np.unique(log.ids[inside])) == 1
    if rows.mean() < MANY or not (is_ragged and is_scored and same_id):
        return log, []
    reason = (
        f"{inside.sum():,} tokens at the ends of {rows.sum():,} rows have logp_infer {value:g} and no mask: "
        "dropped as padding"
    )
    return replace(log, mask=~inside), [Problem(file, None, reason)]
