"""The questions in the order in which they are answered."""

from collections.abc import Callable

from simlab.harness.diagnosis import (
    micro_batches,
    processing,
    routing,
    sequence_weights,
    staleness,
    weight_sync,
)
from simlab.harness.diagnosis.answer import Answer
from simlab.harness.diagnosis.log import TokenLog

DETECTORS: dict[str, Callable[[TokenLog], Answer]] = {
    "weight_sync": weight_sync.weight_sync,
    "processing": processing.processing,
    "staleness": staleness.staleness,
    "micro_batches": micro_batches.micro_batches,
    "routing": routing.routing,
    "vanishing": sequence_weights.vanishing,
    "correction": sequence_weights.recommended,
}

QUESTIONS: dict[str, str] = {
    "weight_sync": weight_sync.QUESTION,
    "processing": processing.QUESTION,
    "staleness": staleness.QUESTION,
    "micro_batches": micro_batches.QUESTION,
    "routing": routing.QUESTION,
    "vanishing": sequence_weights.VANISH,
    "correction": sequence_weights.CORRECT,
}


def answers(log: TokenLog) -> dict[str, Answer]:
    """Ask every detector about a log without masked tokens."""
    return {name: detector(log) for name, detector in DETECTORS.items()}
