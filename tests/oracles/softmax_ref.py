"""The oracle of the softmax: one row at a time in float64, rounded where a placement says."""

import math
from collections.abc import Callable, Mapping, Sequence

Round = Callable[[float], float]


def softmax_ref(z: Sequence[float], rounded: Mapping[str, Round]) -> list[float]:
    """Softmax of one row of logits; `rounded` maps steps of `Softmax` to roundings, the rest is float64."""
    _, exponentials, total = _steps(z, rounded)
    return [_at("probs", e / total, rounded) for e in exponentials]


def log_softmax_ref(z: Sequence[float], rounded: Mapping[str, Round]) -> list[float]:
    """Log-softmax of one row of logits, rounded as `softmax_ref`."""
    shifted, _, total = _steps(z, rounded)
    return [_at("log_probs", x - math.log(total), rounded) for x in shifted]


def _steps(z: Sequence[float], rounded: Mapping[str, Round]) -> tuple[list[float], list[float], float]:
    logits = [_at("logits", x, rounded) for x in z]
    largest = max(logits)
    shifted = [_at("shifted", x - largest, rounded) for x in logits]
    exponentials = [_at("exponentials", math.exp(x), rounded) for x in shifted]
    return shifted, exponentials, _at("total", math.fsum(exponentials), rounded)


def _at(step: str, x: float, rounded: Mapping[str, Round]) -> float:
    return rounded[step](x) if step in rounded else x
