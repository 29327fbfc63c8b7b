"""Test for staleness: whether the mismatch grows with the weight updates since sampling."""

import numpy as np

from simlab.diagnosis.answer import Answer, answer_by_score, unknown_answer
from simlab.diagnosis.log import TokenLog, log_rho
from simlab.diagnosis.rank_tests import mean_by_class, spearman_z

QUESTION = "staleness?"
MAX_LAGS_SHOWN = 12


def rms_by_lag(log_rho: np.ndarray, lag: np.ndarray) -> dict[int, float]:
    """Return the RMS log rho of the tokens [N] of each lag."""
    ages, index = np.unique(lag, return_inverse=True)
    levels = np.sqrt(mean_by_class(np.square(log_rho, dtype=np.float64), index))
    return dict(zip(ages.tolist(), levels.tolist(), strict=True))


def detect_staleness(log: TokenLog) -> Answer:
    """Answer `QUESTION` for a log with `version`, the number of updates of the sampling weights."""
    if log.version is None:
        return unknown_answer(QUESTION, "no `version` in the log", "log the weight version of each rollout")
    nonempty = log.lengths > 0
    lag = (log.step - log.version)[nonempty]
    ages = np.unique(lag)
    if len(ages) < 2:
        age = f"all sequences are {ages[0]} updates old" if len(ages) else "no tokens"
        return unknown_answer(QUESTION, age, "log sequences of different ages")
    x = log_rho(log)
    squares = mean_by_class(np.square(x, dtype=np.float64), log.sequence, log.num_sequences)
    z = spearman_z(lag, squares[nonempty])
    levels = rms_by_lag(x, log.spread_to_tokens(log.step - log.version))
    freshest, oldest = levels[int(ages[0])], levels[int(ages[-1])]
    growth = oldest / freshest if freshest > 0 else np.inf
    everything = float(np.mean(np.square(x, dtype=np.float64)))
    share = 1 - freshest**2 / everything if everything > 0 else 0.0
    score = float(min(max(z, 0.0) / 3, growth / 1.2, 1e3))
    listed = [f"{age}: {level:.3g}" for age, level in levels.items()]
    shown = [*listed[:MAX_LAGS_SHOWN], "..."] if len(listed) > MAX_LAGS_SHOWN else listed
    evidence = (
        f"RMS log rho by age in updates: {', '.join(shown)}",
        f"rank correlation of age and mismatch, {len(lag)} sequences: z = {z:.1f}",
    )
    verdicts = f"staleness causes {max(share, 0):.0%} of the mean squared log rho", "not staleness"
    fix = "fewer updates per rollout, or partial rollouts that restart after a sync"
    return answer_by_score(QUESTION, score, len(x), verdicts, evidence, fix)
