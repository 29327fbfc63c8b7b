"""The questions of `simlab diagnose` and their answers, in the order of the answers."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from simlab.diagnosis import micro_batches, routing, sequence_weights, version_lag
from simlab.diagnosis.answer import Answer
from simlab.diagnosis.classifier import UNKNOWN
from simlab.diagnosis.log import TokenLog
from simlab.diagnosis.ranking import PROCESSING_CAUSES, SYNC_CAUSES, RankedCause, answer_from_causes

FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "weight_sync": ("number formats, or a broken weight sync?", SYNC_CAUSES),
    "processing": ("precision, or processing by top-p, top-k or temperature?", PROCESSING_CAUSES),
}
"""Questions that the ranked causes answer."""

DETECTORS: dict[str, tuple[str, Callable[[TokenLog], Answer]]] = {
    "staleness": (version_lag.QUESTION, version_lag.detect_staleness),
    "micro_batches": (micro_batches.QUESTION, micro_batches.detect_micro_batch_effects),
    "routing": (routing.QUESTION, routing.detect_router_flips),
    "vanishing": (sequence_weights.VANISH, sequence_weights.predict_vanishing),
    "correction": (sequence_weights.CORRECT, sequence_weights.recommend_correction),
}
"""Questions with a test of their own, which needs its columns."""

QUESTIONS: dict[str, str] = {name: entry[0] for name, entry in (*FAMILIES.items(), *DETECTORS.items())}


def answer_questions(
    log: TokenLog, causes: list[RankedCause], signatures: Mapping[str, float]
) -> dict[str, Answer]:
    """Answer every question about a log without masked tokens."""
    answers = {
        name: answer_from_causes(question, causes, signatures, family)
        for name, (question, family) in FAMILIES.items()
    }
    answers |= {name: detector(log) for name, (_, detector) in DETECTORS.items()}
    if causes[0].cause not in ("rounding", UNKNOWN):
        first = f"fix {causes[0].cause} first: a correction hides a fault and costs samples"
        correction = answers["correction"]
        recommendation = "; ".join(filter(None, (first, correction.recommendation)))
        answers["correction"] = replace(correction, recommendation=recommendation)
    return answers
