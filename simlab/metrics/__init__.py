"""Metrics of the mismatch, of the effects of an objective, and of the structure of the update.

The name of a metric is that of its paper, else a descriptive one; `VERL_ALIASES` translates verl's. An
average or extreme of nothing is NaN, a count or sum of nothing is zero.
"""

from simlab.metrics.catalog import CURVE_METRICS, METRICS, OBJECTIVE_METRICS, VERL_ALIASES, WEIGHT_METRICS
from simlab.metrics.divergence import exact_kl
from simlab.metrics.gradient_structure import energy_by_frequency, jitter2
from simlab.metrics.noise_scale import GradientNoise, gradient_noise
from simlab.metrics.pressure import clipped_tokens, tokens_in_loss
from simlab.metrics.probability_bins import PROBABILITY_EDGES, controlled_rms_log_rho

__all__ = [
    "CURVE_METRICS",
    "METRICS",
    "OBJECTIVE_METRICS",
    "PROBABILITY_EDGES",
    "VERL_ALIASES",
    "WEIGHT_METRICS",
    "GradientNoise",
    "clipped_tokens",
    "controlled_rms_log_rho",
    "energy_by_frequency",
    "exact_kl",
    "gradient_noise",
    "jitter2",
    "tokens_in_loss",
]
