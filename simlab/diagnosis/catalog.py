"""The detectors and their questions, in the order of the answers."""

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
    "weight_sync": weight_sync.detect_weight_sync,
    "processing": processing.detect_processing,
    "staleness": version_lag.detect_staleness,
    "micro_batches": micro_batches.detect_micro_batch_effects,
    "routing": routing.detect_router_flips,
    "vanishing": sequence_weights.predict_vanishing,
    "correction": sequence_weights.recommend_correction,
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


def answer_questions(log: TokenLog) -> dict[str, Answer]:
    """Run every detector on a log without masked tokens, then reconcile the verdicts."""
    found = {name: detector(log) for name, detector in DETECTORS.items()}
    faults = [name for name in FAULTS if found[name].has_fault]
    sync, processed, correction = (found[name] for name in ("weight_sync", "processing", "correction"))
    if processed.has_fault and not sync.has_fault:
        verdict = "no sign of a broken sync: processing causes the mismatch, see below"
        found["weight_sync"] = replace(sync, verdict=verdict)
    elif faults and not processed.has_fault and processed.score is not None:
        found["processing"] = replace(processed, verdict="no sign of processing; see the other answers")
    if faults:
        first = "fix the faults above first: a correction hides a fault and costs samples"
        found["correction"] = replace(
            correction, recommendation="; ".join(filter(None, (first, correction.recommendation)))
        )
    return found


FAULTS = ("weight_sync", "processing", "staleness", "routing")
"""Detectors of faults that make the mismatch larger than number formats alone."""
