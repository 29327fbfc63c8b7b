"""Changes of probabilities when a softmax is rounded: exactly per format, and predicted from ulps."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from simlab.formats import quantize
from simlab.theory.expectation import softmax

SITES = ("logits", "probs")


def round_softmax(
    logits: Float[np.ndarray, "K V"], fmt: str, rounding: str = "nearest_even", sites: tuple[str, ...] = SITES
) -> Float[np.ndarray, "K V"]:
    """Return an engine's probabilities `[K, V]`: logits and final probabilities rounded, exact between.

    Rows need not sum to one; an engine samples from the rows divided by their sums.

    Reference: hacking Eq. 44, 45.
    Deviation: Eq. 45 does not say where rounding happens; rounding at these two sites gives the
    statistics of Tab. 2. Between them the softmax is computed in float64 instead of float32.
    """
    rounded = _round(logits, fmt, rounding) if "logits" in sites else logits
    probs = softmax(rounded)
    return _round(probs, fmt, rounding) if "probs" in sites else probs


def _round(values: np.ndarray, fmt: str, rounding: str) -> np.ndarray:
    return np.asarray(quantize(jnp.asarray(values, jnp.float32), fmt, rounding=rounding), np.float64)


def normalize_rows(printed: Float[np.ndarray, "K V"]) -> Float[np.ndarray, "K V"]:
    """Normalize the printed probabilities to what is sampled from; `ValueError` where a row is all zero."""
    total = printed.sum(-1, keepdims=True)
    if not (total > 0).all():
        raise ValueError("a row of probabilities rounds to zero everywhere: the format cannot hold it")
    return printed / total


def ulp(values: Float[np.ndarray, "*S"], mantissa_bits: int) -> Float[np.ndarray, "*S"]:
    """Return the distance of neighbors in a format without exponent limits: 2^(exponent - mantissa bits)."""
    return np.ldexp(1.0, np.frexp(values)[1] - 1 - mantissa_bits)


def log_ratio_moments(
    logits: Float[np.ndarray, "K V"],
    mantissa_bits: int,
    rounding: str = "nearest_even",
    sites: tuple[str, ...] = SITES,
) -> tuple[Float[np.ndarray, "K V"], Float[np.ndarray, "K V"]]:
    """Predict mean and variance of log(rounded / exact probability) for each token, `[K, V]`.

    A rounding error of a value x is nearly uniform over one ulp(x): variance ulp^2 / 12, mean 0 to
    nearest and -sign(x) ulp / 2 toward zero. With d_b the error of logit b, log p_a moves by
    d_a - sum_b p_b d_b; rounding p_a itself adds an error relative to p_a. The errors being independent,
        variance = (ulp(z_a)^2 (1 - 2 p_a) + sum_b p_b^2 ulp(z_b)^2 + (ulp(p_a) / p_a)^2) / 12,
    so the spread of rho halves with each mantissa bit, rare tokens are no worse than common ones of the
    same |logit|, and large |logits| dominate. For BF16 and N(0, 1.5^2) logits over 2048 tokens this
    gives the 0.0048 of Tab. 2.

    Reference: hacking Eq. 44, 45, Tab. 2.
    Deviation: the paper measures the spread; the formula is a result of ours. Subnormals, overflow and
    the normalization of printed rows are left out.
    """
    if rounding not in ("nearest_even", "toward_zero"):
        raise ValueError(f"rounding must be nearest_even or toward_zero, got {rounding!r}")
    probs = softmax(logits)
    of_logits = ulp(logits, mantissa_bits) * ("logits" in sites)
    of_probs = ulp(probs, mantissa_bits) / probs * ("probs" in sites)
    variance = of_logits**2 * (1 - 2 * probs) + (probs**2 * of_logits**2).sum(-1, keepdims=True)
    shift = -np.sign(logits) * of_logits / 2
    mean = shift - (probs * shift).sum(-1, keepdims=True) - of_probs / 2
    return mean * (rounding == "toward_zero"), (variance + of_probs**2) / 12


def predict_rho_std(
    logits: Float[np.ndarray, "K V"],
    mantissa_bits: int,
    rounding: str = "nearest_even",
    sites: tuple[str, ...] = SITES,
) -> float:
    """Predict the std of rho over sampled tokens: of log rho, to first order.

    Reference: hacking Eq. 5, 45, Tab. 2.
    """
    mean, variance = log_ratio_moments(logits, mantissa_bits, rounding, sites)
    probs = softmax(logits) / len(logits)
    average = (probs * mean).sum()
    return float(np.sqrt((probs * (variance + (mean - average) ** 2)).sum()))


def measure_rho_std(logits: Float[np.ndarray, "K V"], printed: Float[np.ndarray, "K V"]) -> float:
    """Return the std of exact / printed probability over tokens sampled from the printed probabilities.

    Reference: hacking Eq. 5, Tab. 2.
    """
    probs = normalize_rows(printed) / len(printed)
    rho = np.where(printed > 0, softmax(logits) / np.where(printed > 0, printed, 1.0), 0.0)
    mean = (probs * rho).sum()
    return float(np.sqrt((probs * (rho - mean) ** 2).sum()))


def gaussian_rho_std(
    fmt: str, rounding: str = "nearest_even", vocabulary: int = 2048, logit_std: float = 1.5, rows: int = 64
) -> float:
    """Return the std of rho if only logits are rounded, on `rows` draws of N(0, logit_std^2) logits.

    Reference: hacking App. C.1.
    """
    if vocabulary < 2 or logit_std <= 0:
        raise ValueError(f"need vocabulary >= 2 and logit_std > 0, got {vocabulary} and {logit_std}")
    logits = np.random.default_rng(0).normal(scale=logit_std, size=(rows, vocabulary))
    return measure_rho_std(logits, round_softmax(logits, fmt, rounding, ("logits",)))
