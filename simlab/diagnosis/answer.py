"""The answer to a question about a run: verdict, confidence and evidence."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEW_TOKENS = 2000
"""Number of tokens below which an answer has less confidence."""
STEEPNESS = 2.0


@dataclass(frozen=True)
class Answer:
    """The result of a detector.

    - `confidence`: 0 to 1; 0 when the log lacks the data.
    - `score`: strength of the fault; the detector reports a fault from 1 on. None when nothing was scored.
    - `evidence`: the numbers behind the verdict.
    - `recommendation`: what to change or to log next.
    """

    question: str
    verdict: str
    confidence: float
    score: float | None = None
    evidence: tuple[str, ...] = ()
    recommendation: str = ""

    @property
    def has_fault(self) -> bool:
        """True if the detector reports its fault."""
        return self.score is not None and self.score >= 1


def unknown_answer(question: str, reason: str, recommendation: str = "") -> Answer:
    """Return the answer of a detector that lacks its data."""
    return Answer(question, "cannot tell", 0.0, evidence=(reason,), recommendation=recommendation)


def answer_by_score(
    question: str, score: float, tokens: int, verdicts: tuple[str, str], evidence: Sequence[str], fix: str
) -> Answer:
    """Return the answer for a score: from 1 on, the first verdict and the `fix`."""
    confidence, has_fault = estimate_confidence(score, tokens), score >= 1
    verdict, recommendation = (verdicts[0], fix) if has_fault else (verdicts[1], "")
    return Answer(question, verdict, confidence, score, tuple(evidence), recommendation)


def estimate_confidence(score: float, tokens: int) -> float:
    """Return the confidence of a verdict: 0.5 at the threshold (score 1), higher further away.

    A logistic curve in log score, flatter for fewer than `FEW_TOKENS` tokens. docs/diagnosis.md reports the
    fraction of correct answers at each confidence.
    """
    distance = abs(np.log(max(score, 1e-6)))
    steepness = STEEPNESS * min(1.0, np.sqrt(tokens / FEW_TOKENS))
    return float(1 / (1 + np.exp(-steepness * min(distance, 2.3))))
