"""Is the mismatch one of age: does it grow with the updates that a sequence missed?"""

import numpy as np

from simlab.diagnosis.answer import Answer, confidence, unknown
from simlab.diagnosis.log import TokenLog, log_rho
from simlab.diagnosis.rank_tests import by_class, rank_z

QUESTION = "staleness?"
SHOWN = 12


def by_lag(log_rho: np.ndarray, lag: np.ndarray) -> dict[int, float]:
    """RMS log rho of the tokens [N] of each lag."""
    ages, levels = by_class(log_rho, lag)
    return dict(zip(ages.tolist(), levels.tolist(), strict=True))


def staleness(log: TokenLog) -> Answer:
    """Answer `QUESTION` for a log with `version`, the number of updates the sampling weights had seen."""
    if log.version is None:
        return unknown(QUESTION, "no `version` in the log", "log the weight version of each rollout")
    lag = (log.step - log.version)[log.lengths > 0]
    ages = np.unique(lag)
    if len(ages) < 2:
        age = f"all sequences have missed {ages[0]} updates" if len(ages) else "no tokens"
        return unknown(QUESTION, age, "only sequences of different ages, in one log, can tell")
    x = log_rho(log)
    sequence = log.of_token(np.arange(log.sequences))
    squares = np.bincount(sequence, np.square(x, dtype=np.float64), log.sequences)[log.lengths > 0]
    z = rank_z(lag, squares / log.lengths[log.lengths > 0])
    levels = by_lag(x, log.of_token(log.step - log.version))
    freshest, oldest = levels[int(ages[0])], levels[int(ages[-1])]
    growth = oldest / freshest if freshest > 0 else np.inf
    everything = float(np.mean(np.square(x, dtype=np.float64)))
    share = 1 - freshest**2 / everything if everything > 0 else 0.0
    score = float(min(max(z, 0.0) / 3, growth / 1.2, 1e3))
    verdict = (
        f"staleness makes {max(share, 0):.0%} of the squared mismatch" if score >= 1 else "not staleness"
    )
    return Answer(
        QUESTION,
        verdict,
        confidence(score, len(x)),
        score,
        (
            "RMS log rho by updates missed: "
            + ", ".join(f"{age}: {level:.3g}" for age, level in list(levels.items())[:SHOWN])
            + (", ..." if len(levels) > SHOWN else ""),
            f"rank correlation of age and mismatch, {len(lag)} sequences: z = {z:.1f}",
        ),
        "fewer updates per rollout, or partial rollouts that restart after a sync" if score >= 1 else "",
    )
