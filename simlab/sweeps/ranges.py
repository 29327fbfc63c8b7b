"""What the numbers of a run may be, where a record does not say it itself."""

import math

TINY = 2.0**-126

# Dotted field, or its last part: smallest and largest value.
RANGES: dict[str, tuple[float, float]] = {
    "steps": (1, 10_000_000),
    "seed": (0, 2**31 - 1),
    "prompts": (1, 1_000_000),
    "group_size": (1, 1_000_000),
    "minibatches": (1, 1_000_000),
    "learning_rate": (0.0, math.inf),
    "beta1": (0.0, 1 - 2.0**-24),
    "beta2": (0.0, 1 - 2.0**-24),
    "eps": (0.0, math.inf),
    "weight_decay": (0.0, math.inf),
    "max_grad_norm": (TINY, math.inf),
    "temperature": (TINY, math.inf),
    "top_k": (1, math.inf),
    "top_p": (TINY, 1.0),
    "min_length": (0, math.inf),
    "mistakes": (0.0, 1.0),
    "final": (0.0, 1.0),
    "warmup": (0, math.inf),
}


def check_range(where: str, value: float) -> None:
    """Raise `ValueError` naming the field `where`, the value and what is allowed; NaN never is."""
    low, high = RANGES.get(where) or RANGES.get(where.rpartition(".")[2]) or (-math.inf, math.inf)
    # `not low <= x` also catches NaN.
    if not low <= value <= high:
        allowed = f"at least {low:g}" if high == math.inf else f"{low:g} to {high:g}"
        raise ValueError(
            f"{where}: bad value {value!r}; allowed: {allowed if low > -math.inf else 'a number'}"
        )
