"""Does the trainer agree with itself: is the policy ratio 1 before the first update?"""

import numpy as np

from simlab.diagnosis.answer import Answer, confidence, unknown
from simlab.diagnosis.log import TokenLog
from simlab.diagnosis.rank_tests import rms, shared_by_class

QUESTION = "micro-batch effects?"
SMALLEST = 1e-4
"""RMS of log r, nats, from which on the trainer disagrees with itself; float32 round-off is a tenth of it."""


def before_updates(moved: np.ndarray, sequence: np.ndarray, update: np.ndarray | None) -> np.ndarray:
    """Mark the tokens [N] that were scored before an update, given log r of each and its sequence.

    Without `update` [S]: those of the half of the sequences that moved least.
    """
    if update is not None:
        return (update == 0)[sequence]
    count = int(sequence.max(initial=-1)) + 1
    tokens = np.bincount(sequence, minlength=count)
    squares = np.bincount(sequence, moved.astype(np.float64) ** 2, count) / np.maximum(tokens, 1)
    squares[tokens == 0] = np.inf
    return (squares <= np.median(squares[tokens > 0]))[sequence]


def micro_batches(log: TokenLog) -> Answer:
    """Answer `QUESTION` for a log with `logp`."""
    if log.logp is None:
        return unknown(QUESTION, "no `logp` in the log", "log the log-probabilities of the update's forward")
    sequence = log.of_token(np.arange(log.sequences))
    moved = log.logp - log.logp_train
    before = before_updates(moved, sequence, log.update)
    if before.sum() < 50:
        return unknown(QUESTION, f"{before.sum()} tokens scored before an update are too few")
    x = moved[before]
    off = rms(x)
    score = float(min(off / SMALLEST, 1e3))
    evidence = [
        f"RMS log r before the first update {off:.2g} nats, {np.mean(x != 0):.1%} of the tokens not 1",
        "`update` is in the log" if log.update is not None else "no `update`: the half that moved least",
    ]
    if log.micro_batch is not None and off > 0:
        part = shared_by_class(x, log.of_token(log.micro_batch)[before])
        evidence.append(f"the micro-batch explains {max(part, 0):.1%} of log r")
    if log.advantages is not None and off > 0:
        z = _correlation(x, log.advantages[before]) * np.sqrt(len(x))
        evidence.append(f"log r against the advantage: z = {z:.1f} (an update would show here)")
    verdict = (
        "yes: the ratio is not 1 before an update" if score >= 1 else "no: the trainer agrees with itself"
    )
    advice = "batch-invariant kernels, or the same micro-batches and padding for old_log_prob and update"
    return Answer(
        QUESTION, verdict, confidence(score, len(x)), score, tuple(evidence), advice if score >= 1 else ""
    )


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.corrcoef(x, y)[0, 1]) if x.std() > 0 and y.std() > 0 else 0.0
