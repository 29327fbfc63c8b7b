"""The questions in the order in which they are answered."""

from collections.abc import Callable
from dataclasses import replace

from simlab.diagnosis import (
    micro_batches,
    processing,
    routing,
    sequence_weights,
    version_lag,
    weight_sync,
)
from simlab.diagnosis.answer import Answer
from simlab.diagnosis.log import TokenLog

DETECTORS: dict[str, Callable[[TokenLog], Answer]] = {
    "weight_sync": weight_sync.weight_sync,
    "processing": processing.processing,
    "staleness": version_lag.staleness,
    "micro_batches": micro_batches.micro_batches,
    "routing": routing.routing,
    "vanishing": sequence_weights.vanishing,
    "correction": sequence_weights.recommended,
}

QUESTIONS: dict[str, str] = {
    "weight_sync": weight_sync.QUESTION,
    "processing": processing.QUESTION,
    "staleness": version_lag.QUESTION,
    "micro_batches": micro_batches.QUESTION,
    "routing": routing.QUESTION,
    "vanishing": sequence_weights.VANISH,
    "correction": sequence_weights.CORRECT,
}


def answers(log: TokenLog) -> dict[str, Answer]:
    """Ask every detector about a log without masked tokens; the words of each then heed the others."""
    found = {name: detector(log) for name, detector in DETECTORS.items()}
    faults = [name for name in FAULTS if found[name].found]
    sync, processed, correction = (found[name] for name in ("weight_sync", "processing", "correction"))
    if processed.found and not sync.found:
        verdict = "no sign of a broken sync: the mismatch is one of processing, see below"
        found["weight_sync"] = replace(sync, verdict=verdict)
    elif faults and not processed.found and processed.score is not None:
        found["processing"] = replace(processed, verdict="no sign of processing; see the other answers")
    if faults:
        first = "mend first what was found above: a correction hides a fault, and costs samples"
        found["correction"] = replace(correction, advice="; ".join(filter(None, (first, correction.advice))))
    return found


FAULTS = ("weight_sync", "processing", "staleness", "routing")
"""Detectors of what makes a mismatch larger than number formats alone."""
