"""First-order theory of the std of rho = p_float32 / p_format.

A number x in a format of m fraction bits is rounded by at most half of u(x) = 2^(floor(log2 |x|) - m).
Treat the error as uniform in that interval; its variance is then u(x)^2 / 12. Two roundings matter:

- Logits. z_i + d_i goes through exp, so p_i is multiplied by exp(d_i / T - D), where the normalizer
  takes away the average D = sum_j p_j d_j / T. Under i ~ p the variance of d_i / T - D is
  sum_i p_i (1 - p_i) u(z_i)^2 / 12 T^2, and it grows with |z|: a logit of 20 is rounded 16 times
  more coarsely than a logit of 1.
- Probabilities. Rounding p_i adds the relative error e_i, with variance u(p_i)^2 / 12 p_i^2.

So, with averages over i ~ p,

    std(rho) = 2^-m sqrt( (a / T^2 + b) / 12 ),  a = E[(1 - p) 4^floor(log2 |z|)],
                                                 b = E[4^floor(log2 p) / p^2].

For z ~ N(0, s^2) and a large vocabulary the sampled logit is N(s^2 / T, s^2), because sampling
multiplies its density by exp(z / T); that gives `a` from the normal distribution function. The
logarithm of p covers several octaves, so the fraction of p is log-uniform in [1, 2) and
b = 1 / ln 2 * integral of f^-3 = 3 / (8 ln 2) = 0.541. At s = 1.5, T = 1: a = 4.00, b = 0.541,
std(rho) = 0.615 * 2^-m, that is 0.0048 for BF16's seven bits; the logits give 88% of the variance.

Rounding toward zero makes the error uniform in [0, u(x)] toward zero instead: variance about its own
mean E[u]/2 becomes E[u^2]/3 - (E[sign u]/2)^2.

Valid while errors are small (m >= 3 or so), p stays normal in the format, and nothing saturates.
"""

import math

import numpy as np
from numpy import ndarray
from scipy import stats

FRACTION_TERM = 3 / (8 * math.log(2))
"""E[1 / f^2] of a fraction f that is log-uniform in [1, 2)."""
FRACTION_MEAN = 1 / (2 * math.log(2))
"""E[1 / f] of the same fraction."""


def rho_std(mantissa_bits, logit_term: float, probability_term: float = FRACTION_TERM):
    """Return std(rho) for nearest rounding; `mantissa_bits` a number or an array."""
    return np.exp2(-np.asarray(mantissa_bits, float)) * math.sqrt((logit_term + probability_term) / 12)


def rho_std_toward_zero(mantissa_bits, logit_term: float, signed_mean: float):
    """Return std(rho) for rounding toward zero; `signed_mean` is E[sign(z) 2^floor(log2 |z|)] / T."""
    logits = logit_term / 3 - (signed_mean / 2) ** 2
    probabilities = FRACTION_TERM / 3 - (FRACTION_MEAN / 2) ** 2
    return np.exp2(-np.asarray(mantissa_bits, float)) * math.sqrt(logits + probabilities)


def gaussian_shares(std: float, temperature: float = 1.0) -> tuple[float, float]:
    """Return (a / T^2, E[sign(z) 2^floor(log2 |z|)] / T) of the sampled logit for z ~ N(0, std^2)."""
    tilted = stats.norm(std**2 / temperature, std)
    edges = np.exp2(np.arange(-40, 12))
    positive = np.diff(tilted.cdf(edges))
    negative = np.diff(tilted.cdf(-edges[::-1]))[::-1]
    step = edges[:-1]
    logit_term = np.sum(step**2 * (positive + negative))
    return logit_term / temperature**2, np.sum(step * (positive - negative)) / temperature


def empirical_shares(logits: ndarray, probs: ndarray) -> tuple[float, float]:
    """Return (a, b) averaged over given distributions: logits and probabilities [n, V]."""
    weight = probs / probs.sum(-1, keepdims=True)
    step, fraction = _step(logits), _relative_step(probs)
    logit_term = np.sum(weight * (1 - weight) * step**2, -1).mean()
    return float(logit_term), float(np.sum(weight * fraction**2, -1).mean())


def token_variance(logits: ndarray, probs: ndarray, mantissa_bits: int) -> ndarray:
    """Return the expected squared error of rho of each token [n, V], for logits and probabilities [n, V]."""
    square = _step(logits) ** 2
    common = np.sum(probs**2 * square, -1, keepdims=True)
    return 4.0**-mantissa_bits / 12 * (square * (1 - 2 * probs) + common + _relative_step(probs) ** 2)


def _step(x: ndarray) -> ndarray:
    """2^floor(log2 |x|), the spacing at x of a format without fraction bits."""
    return np.exp2(np.floor(np.log2(np.maximum(np.abs(x), 2.0**-126))))


def _relative_step(x: ndarray) -> ndarray:
    """The same divided by x; zeros give 1."""
    safe = np.where(x > 0, x, 1.0)
    return _step(safe) / safe
