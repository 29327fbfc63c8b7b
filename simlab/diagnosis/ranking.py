"""Rank the causes of a log's mismatch: probability, evidence, check and fix of each."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from simlab.core.json_value import Json
from simlab.diagnosis.answer import Answer
from simlab.diagnosis.causes import CAUSES, PERCENTAGES, WORDS
from simlab.diagnosis.classifier import UNKNOWN, as_row, estimate_causes, load_classifier
from simlab.diagnosis.log import TokenLog
from simlab.diagnosis.signatures import FEW, measure_signatures

MAX_EVIDENCE = 4
SHOWN = 0.01
"""Probability below which a cause comes without evidence."""
SHORT = 24
"""Length of the longest response, tokens, below which `position` is not named: in short answers of one form
the index cannot be distinguished from the content."""
NO_SIGN = (
    "no number is outside the range of logs without a fault: weights rounded to 4 or 8 bits look the same",
)
"""First evidence of `weight_sync` in this case."""
SYNC_CAUSES = ("weight_sync", "one_worker")
PROCESSING_CAUSES = ("temperature", "support", "log_base")
LEVELS = (
    (1e-5, "the engines agree"),
    (0.22, "the size of BF16 noise"),
    (1.3, "the size of 8-bit noise (FP8, INT8)"),
)
"""Largest RMS log rho at probability 0.1 to 0.9, nats; of the real engines of `real_pairs` 0.04 to 0.22 in
BF16 and FP16, 0.2 to 1.27 with W8A8 and FP8 caches."""


@dataclass(frozen=True)
class RankedCause:
    """A cause with its probability and the numbers behind it, as `simlab diagnose --json` prints it."""

    cause: str
    probability: float
    evidence: tuple[str, ...]
    check: str
    fix: str

    def as_dict(self) -> dict[str, Json]:
        """Return plain values."""
        return asdict(self) | {"evidence": list(self.evidence)}


def rank_causes(log: TokenLog) -> tuple[list[RankedCause], dict[str, float]]:
    """Return every cause, most probable first, and the signatures of a log without masked tokens.

    A log with fewer than `FEW` tokens is `unknown`. If all responses are below `SHORT`, `position` becomes
    `unknown`.
    """
    count = len(log.logp_train)
    if count < FEW:
        return list_causes(
            {UNKNOWN: 1.0}, {}, (f"{count} {'token' if count == 1 else 'tokens'}; at least {FEW} are needed",)
        ), {}
    signatures = measure_signatures(log)
    probabilities = estimate_causes(signatures)
    if log.lengths.max() < SHORT:
        probabilities[UNKNOWN] += probabilities.pop("position", 0.0)
    return list_causes(probabilities, signatures), signatures


def list_causes(
    probabilities: Mapping[str, float], signatures: Mapping[str, float], reason: tuple[str, ...] = ()
) -> list[RankedCause]:
    """Return every cause with its probability, best first; `reason` is the evidence where signs give none."""
    order = sorted(CAUSES, key=lambda name: -probabilities.get(name, 0.0))
    ranked = []
    for name in order:
        probability, cause = probabilities.get(name, 0.0), CAUSES[name]
        evidence = describe_signs(cause.signs, signatures) if probability >= SHOWN else ()
        if name == "weight_sync" and evidence:
            model = load_classifier()
            if not model.has_sign(name, as_row(signatures, model.names)[None])[0]:
                evidence = (*NO_SIGN, *evidence[: MAX_EVIDENCE - 1])
        ranked.append(RankedCause(name, probability, evidence or reason, cause.check, cause.fix))
    return ranked


def describe_signs(names: tuple[str, ...], signatures: Mapping[str, float]) -> tuple[str, ...]:
    """Return one line per measured signature: those outside the range of logs without a fault first."""
    if not signatures:
        return ()
    model = load_classifier()
    row, lows, highs = as_row(signatures, model.names), model.faultless_low, model.faultless_high
    fitted = {str(name): each for name, *each in zip(model.names, row, lows, highs, strict=True)}
    lines = []
    for name in names:
        value = signatures.get(name, np.nan)
        if not np.isfinite(value) or name not in fitted:
            continue
        rounded, low, high = fitted[name]
        inside = low <= rounded <= high
        words = f"{WORDS[name][0]}: {format_sign(name, value)}"
        if low > -9:
            words += f" (without a fault: {format_sign(name, low)} to {format_sign(name, high)})"
        lines.append((inside, words))
    return tuple(words for _, words in sorted(lines, key=lambda line: line[0])[:MAX_EVIDENCE])


def format_sign(name: str, value: float) -> str:
    """Return the value of a signature in the unit of its words; percentages as percentages."""
    scale = WORDS[name][1]
    if scale == "exp":
        return f"{np.exp(value):.3g}"
    if scale == "power":
        value = 10**value
    elif scale == "expm1":
        value = np.expm1(value)
    elif scale == "signed_expm1":
        value = np.sign(value) * np.expm1(abs(value))
    return f"{value:.2%}" if name in PERCENTAGES else f"{value:.3g}"


def answer_from_causes(
    question: str, causes: list[RankedCause], signatures: Mapping[str, float], family: tuple[str, ...]
) -> Answer:
    """Answer one of the questions about a family of causes from the ranked causes.

    The confidence is the probability of the verdict; `score` is twice the probability of `family`.
    """
    best = causes[0]
    probability = sum(cause.probability for cause in causes if cause.cause in family)
    if not signatures:
        return Answer(question, "cannot tell", 0.0, evidence=best.evidence)
    likeliest = max((cause for cause in causes if cause.cause in family), key=lambda cause: cause.probability)
    confidence = max(probability, 1 - probability)
    if probability >= 0.5:
        verdict, shown = _name_fault(likeliest.cause, signatures), likeliest
    elif best.cause in family:
        verdict, shown = f"perhaps {_name_fault(best.cause, signatures)}", best
        confidence = probability
    elif best.cause == "rounding":
        level = 10 ** signatures["level"]
        size = next((words for limit, words in LEVELS if level <= limit), "coarser than 8-bit formats")
        verdict, shown = f"number formats: {size}", best
    else:
        verdict, shown = f"another cause: {CAUSES[best.cause].title}", best
    return Answer(
        question,
        verdict,
        confidence,
        2 * probability,
        shown.evidence,
        shown.fix if best.cause != "rounding" else "",
    )


def _name_fault(cause: str, signatures: Mapping[str, float]) -> str:
    if cause == "temperature" and np.isfinite(signatures["temperature"]):
        slope = signatures["temperature"]
        return f"processed: temperature about {slope:.2f} in the inference engine, 1 in training"
    if cause in PROCESSING_CAUSES:
        return f"processed: {CAUSES[cause].title}"
    return CAUSES[cause].title
