"""The metrics of `simlab.metrics` for ragged logs, in NumPy and float64, without padding or compilation.

A test compares each metric with that of the same name in `simlab.metrics`.
"""

import numpy as np

from simlab.diagnosis.log import TokenLog, log_rho
from simlab.metrics.probability_bins import PROBABILITY_EDGES


def measure(log: TokenLog) -> dict[str, float | np.floating | np.ndarray]:
    """Return every metric of a log.

    Args:
        log: N tokens of S sequences, without masked tokens.

    Returns:
        By name: a float, or an array over the bins of `PROBABILITY_EDGES`; empty for a log without tokens.
    """
    if not len(log.logp_train):
        return {}
    raw = log.logp_train.astype(np.float64) - log.logp_infer
    x = log_rho(log).astype(np.float64)
    train, infer = (np.exp(logp, dtype=np.float64) for logp in (log.logp_train, log.logp_infer))
    return (
        _of_tokens(x, raw, train, infer)
        | _of_sequences(log, raw, np.abs(train - infer))
        | _of_bins(x, raw, train, infer)
    )


def _of_tokens(
    x: np.ndarray, raw: np.ndarray, train: np.ndarray, infer: np.ndarray
) -> dict[str, float | np.floating]:
    excess, apart, count = np.expm1(x), np.abs(train - infer), len(x)
    rho = excess + 1
    return {
        "std_rho": excess.std(),
        "mean_rho": 1 + excess.mean(),
        "max_rho": rho.max(),
        "min_rho": rho.min(),
        "rms_log_rho": np.sqrt(np.mean(raw**2)),
        "fraction_rho_above": np.mean(x > np.log(2)),
        "fraction_rho_below": np.mean(x < -np.log(2)),
        "discrepancy_per_token": apart.mean(),
        "discrepancy_max": apart.max(),
        "discrepancy_std": apart.std(ddof=1) if count > 1 else np.nan,
        "pcc": np.corrcoef(train, infer)[0, 1] if train.std() > 0 and infer.std() > 0 else np.nan,
        "k1_kl": -raw.mean(),
        "k3_kl": np.mean(np.maximum(excess - x, 0)),
        "chi2_token": np.mean(np.expm1(2 * x)),
        "ess_token": rho.mean() ** 2 / np.mean(rho**2),
    }


def _of_sequences(log: TokenLog, raw: np.ndarray, apart: np.ndarray) -> dict[str, float | np.floating]:
    lengths, starts = log.lengths[log.lengths > 0], log.starts[log.lengths > 0]

    def per_token(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values.astype(np.float64), starts) / lengths

    sums = np.add.reduceat(raw, starts)
    clipped = np.clip(sums, -20, 20)
    weights = np.exp(clipped - clipped.max())
    trained, sampled = -per_token(log.logp_train), -per_token(log.logp_infer)
    return {
        "max_rho_sequence": np.exp(clipped.max()),
        "min_rho_sequence": np.exp(clipped.min()),
        "discrepancy": per_token(apart).mean(),
        "chi2_sequence": np.mean(np.expm1(2 * clipped)),
        "ess_sequence": weights.mean() ** 2 / np.mean(weights**2),
        "abs_seq_log_ratio": np.abs(sums).mean(),
        "log_ppl_abs_diff": np.abs(trained - sampled).mean(),
        "log_ppl_diff": (trained - sampled).mean(),
        "log_ppl_diff_max": (trained - sampled).max(),
        "log_ppl_diff_min": (trained - sampled).min(),
        "ppl_ratio": np.exp(trained - sampled).mean(),
        "training_log_ppl": trained.mean(),
        "rollout_log_ppl": sampled.mean(),
        "training_ppl": np.exp(trained).mean(),
        "rollout_ppl": np.exp(sampled).mean(),
    }


def _of_bins(x: np.ndarray, raw: np.ndarray, train: np.ndarray, infer: np.ndarray) -> dict[str, np.ndarray]:
    size = len(PROBABILITY_EDGES) - 1

    def means(values: np.ndarray, index: np.ndarray, counts: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.bincount(index, values, size) / counts

    by_train, by_infer = (
        np.searchsorted(PROBABILITY_EDGES[1:-1], probs, "right") for probs in (train, infer)
    )
    tokens, sampled = (np.bincount(index, minlength=size) for index in (by_train, by_infer))
    return {
        "tokens_by_pi_train": tokens,
        "mean_rho_by_pi_train": means(np.exp(x), by_train, tokens),
        "mean_rho_by_pi_infer": means(np.exp(x), by_infer, sampled),
        "rms_log_rho_by_pi_train": np.sqrt(means(raw**2, by_train, tokens)),
    }
