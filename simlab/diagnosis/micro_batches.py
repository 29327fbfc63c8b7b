"""Test whether the training engine agrees with itself: the PPO ratio is 1 before the first update."""

import numpy as np

from simlab.diagnosis.answer import Answer, answer_by_score, unknown_answer
from simlab.diagnosis.log import TokenLog
from simlab.diagnosis.rank_tests import correlate, intraclass_correlation, mean_by_class, rms

QUESTION = "micro-batch effects?"
MIN_RMS_LOG_R = 1e-4
"""RMS of log r, nats, from which on the engine disagrees with itself; float32 round-off is a tenth of it."""


def mark_before_update(moved: np.ndarray, sequence: np.ndarray, update: np.ndarray | None) -> np.ndarray:
    """Return whether each token [N] was scored before an update.

    Args:
        moved: log r of each token, [N].
        sequence: Sequence of each token, [N].
        update: Updates before each sequence, [S]. If None, the half of the sequences that moved least counts
            as scored before an update.
    """
    if update is not None:
        return (update == 0)[sequence]
    count = int(sequence.max(initial=-1)) + 1
    squares = mean_by_class(moved.astype(np.float64) ** 2, sequence, count)
    return (squares <= np.median(squares[np.unique(sequence)]))[sequence]


def detect_micro_batch_effects(log: TokenLog) -> Answer:
    """Answer `QUESTION` for a log with `logp`."""
    if log.logp is None:
        return unknown_answer(
            QUESTION, "no `logp` in the log", "log the log-probabilities of the update's forward pass"
        )
    moved = log.logp - log.logp_train
    before = mark_before_update(moved, log.sequence, log.update)
    if before.sum() < 50:
        return unknown_answer(QUESTION, f"{before.sum()} tokens scored before an update; the test needs 50")
    x = moved[before]
    off = rms(x)
    score = float(min(off / MIN_RMS_LOG_R, 1e3))
    evidence = [
        f"RMS log r before the first update {off:.2g} nats, {np.mean(x != 0):.1%} of the tokens not 1",
        "`update` is in the log" if log.update is not None else "no `update`: uses the half that moved least",
    ]
    if log.micro_batch is not None and off > 0:
        part = intraclass_correlation(x, log.spread_to_tokens(log.micro_batch)[before])
        evidence.append(f"the micro-batch explains {max(part, 0):.1%} of log r")
    if log.advantages is not None and off > 0:
        z = correlate(x.astype(np.float64), log.advantages[before]) * np.sqrt(len(x))
        evidence.append(f"correlation of log r and the advantage: z = {z:.1f} (large after an update)")
    verdicts = "yes: the PPO ratio is not 1 before an update", "no: the PPO ratio is 1 before an update"
    fix = "batch-invariant kernels, or the same micro-batches and padding for old_log_prob and update"
    return answer_by_score(QUESTION, score, len(x), verdicts, evidence, fix)
