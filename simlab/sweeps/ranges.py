"""What the numbers of a run may be, where a record does not say it itself."""

import math

from simlab.core.catalog import shown

TINY = 2.0**-126
HUGE = float(2.0**127)

# Dotted field, or its last part: smallest and largest value.
RANGES: dict[str, tuple[float, float]] = {
    "steps": (1, 10_000_000),
    "seed": (0, 2**31 - 1),
    "prompts": (1, 1_000_000),
    "group_size": (1, 1_000_000),
    "minibatches": (1, 1_000_000),
    "learning_rate": (0.0, HUGE),
    "beta1": (0.0, 1 - 2.0**-24),
    "beta2": (0.0, 1 - 2.0**-24),
    "eps": (0.0, HUGE),
    "weight_decay": (0.0, HUGE),
    "max_grad_norm": (TINY, math.inf),
    "temperature": (TINY, HUGE),
    "top_k": (1, 2**31 - 1),
    "top_p": (TINY, 1.0),
    "min_length": (0, 2**31 - 1),
    "mistakes": (0.0, 1.0),
    "final": (0.0, 1.0),
    "staleness": (0, 1000),
    "vocab_size": (1, 1_000_000),
    "hidden_size": (1, 1_000_000),
    "num_hidden_layers": (1, 10_000),
    "num_attention_heads": (1, 10_000),
    "num_key_value_heads": (1, 10_000),
    "head_dim": (2, 10_000),
    "intermediate_size": (1, 10_000_000),
    "num_experts": (0, 10_000),
    "moe_intermediate_size": (1, 10_000_000),
    "extra_terms.entropy": (-HUGE, HUGE),
    "extra_terms.kl": (-HUGE, HUGE),
    "warmup": (0, HUGE),
}


def check_range(where: str, value: float) -> None:
    """Raise `ValueError` naming the field `where`, the value and what is allowed; NaN never is."""
    low, high = RANGES.get(where) or RANGES.get(where.rpartition(".")[2]) or (-math.inf, math.inf)
    # `not low <= x` also catches NaN.
    if not low <= value <= high:
        allowed = f"at least {low:g}" if high >= HUGE else f"{low:g} to {high:g}"
        raise ValueError(
            f"{where}: bad value {shown(value)}; allowed: {allowed if low > -math.inf else 'a number'}"
        )
