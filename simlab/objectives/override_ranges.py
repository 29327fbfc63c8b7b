"""Ranges of the numbers of an objective, checked before any compute."""

import math

from jax.core import Tracer

from simlab.core.catalog import shorten
from simlab.core.pytree import Scalar
from simlab.core.ranges import Range

Override = Scalar | tuple[Scalar, Scalar] | list[float] | str | None
"""A number or switch, a pair of numbers, or the name of a choice."""
INFINITY = math.inf

# name -> smallest and largest value allowed, and whether a pair (low, high) may stand for it.
RANGES: dict[str, tuple[float, float, bool]] = {
    "clip_low": (0.0, INFINITY, False),
    "clip_high": (0.0, INFINITY, False),
    "dual_clip": (1.0, INFINITY, False),
    "correction_clip": (0.0, INFINITY, True),
    "acrl_gamma": (0.0, INFINITY, False),
    "acrl_clip": (0.0, INFINITY, False),
    "acrl_reference": (0.0, INFINITY, False),
    "distortion_delta": (0.0, INFINITY, False),
    "distortion_threshold": (0.0, 1.0, False),
    "distortion_std": (0.0, INFINITY, False),
    "rejection_bounds": (0.0, INFINITY, True),
    "opsm_delta": (0.0, INFINITY, False),
    "divergence_low": (0.0, INFINITY, False),
    "divergence_high": (0.0, INFINITY, False),
    "divergence_top_k": (1.0, INFINITY, False),
    "divergence_bound": (0.0, INFINITY, False),
    "ratio_cap": (0.0, INFINITY, False),
    "kpop_bound": (0.0, INFINITY, False),
    "drpo_delta": (2.0**-126, INFINITY, False),
    "vespo_k_positive": (0.0, INFINITY, False),
    "vespo_lambda_positive": (0.0, INFINITY, False),
    "vespo_k_negative": (0.0, INFINITY, False),
    "vespo_lambda_negative": (0.0, INFINITY, False),
    "m2_threshold": (0.0, INFINITY, False),
    "dro_beta": (0.0, INFINITY, False),
    "cov_ratio": (0.0, 1.0, False),
    "cov_low": (-INFINITY, INFINITY, False),
    "cov_high": (-INFINITY, INFINITY, False),
    "kl_cov_ratio": (0.0, 1.0, False),
    "kl_cov_coefficient": (0.0, INFINITY, False),
    "rollout_kl_coefficient": (0.0, INFINITY, False),
    "prob_diff_bounds": (-1.0, 1.0, True),
    "top_k": (1.0, INFINITY, False),
    "vaco_bound": (0.0, INFINITY, False),
    "sapo_tau_positive": (2.0**-126, INFINITY, False),
    "sapo_tau_negative": (2.0**-126, INFINITY, False),
    "transform_scale": (0.0, INFINITY, False),
    "rebalance_floor": (0.0, INFINITY, False),
}


def check_range(name: str, value: Override) -> None:
    """Check the value of an override.

    Traced values, stacked values and names without a row in `RANGES` pass unseen.

    Raises:
        ValueError: For a value outside its range, with the value and what is allowed.
    """
    if name not in RANGES or value is None:
        return
    low, high, pairs = RANGES[name]
    numbers = value if isinstance(value, tuple | list) else (value,)
    allowed = f"{Range(low, high)}{', or a pair (low, high) of such with low <= high' if pairs else ''}"
    if len(numbers) > 1 and not (pairs and len(numbers) == 2):
        raise ValueError(f"{name} must be one number, {allowed}, got {shorten(value)}.")
    if any(isinstance(number, Tracer) or getattr(number, "ndim", 0) for number in numbers):
        return
    try:
        known = [float(number) for number in numbers]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a number, {allowed}, got {shorten(value)}.") from error
    # `not low <= x` also catches NaN.
    if any(not low <= number <= high for number in known) or known != sorted(known):
        raise ValueError(f"{name} must be {allowed}, got {shorten(value)}.")
