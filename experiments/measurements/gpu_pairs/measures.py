"""Mismatch of two engines on the same tokens, and intervals by resampling units."""

import numpy as np

RESAMPLES = 1000
LEVEL = (0.025, 0.975)


def squares(train: np.ndarray, infer: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Sum of squared log rho over the tokens of each unit [units]."""
    return np.sum(np.where(mask, train - infer, 0) ** 2, axis=1)


def mismatch(train: np.ndarray, infer: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    """Return std of rho, RMS log rho with a 95% interval, mean |pi - pi|, and the share of equal tokens."""
    log_rho = (train - infer)[mask]
    low, high = np.sqrt(interval(squares(train, infer, mask), mask.sum(1)))
    return {
        "std_rho": float(np.exp(log_rho).std()),
        "rms_log_rho": float(np.sqrt(np.mean(log_rho**2))),
        "rms_low": float(low),
        "rms_high": float(high),
        "discrepancy": float(np.abs(np.exp(train[mask]) - np.exp(infer[mask])).mean()),
        "equal": float(np.mean(log_rho == 0)),
    }


def share_row(by_prompt: np.ndarray, total: np.ndarray) -> dict[str, float]:
    """Return the share of `by_prompt` in `total`, both [units], with its interval."""
    low, high = interval(by_prompt, total)
    return {"share": by_prompt.sum() / total.sum(), "low": low, "high": high}


def interval(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """95% interval of sum(numerator) / sum(denominator), resampling units [units] with replacement."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(numerator), (RESAMPLES, len(numerator)))
    below = np.maximum(denominator[drawn].sum(1), np.finfo(float).tiny)
    return np.quantile(numerator[drawn].sum(1) / below, LEVEL)
