"""An answer to a question about a run: what, how sure, and why."""

from dataclasses import dataclass

import numpy as np

FEW = 2000
"""Tokens below which an answer is less sure."""
STEEPNESS = 2.0


@dataclass(frozen=True)
class Answer:
    """What a detector says.

    - `sure`: 0 to 1; 0 when the log does not say.
    - `score`: how strongly the fault shows; found when at least 1. None when there is nothing to score.
    - `evidence`: the numbers behind it; `advice`: what to do or to log next.
    """

    question: str
    verdict: str
    sure: float
    score: float | None = None
    evidence: tuple[str, ...] = ()
    advice: str = ""

    @property
    def found(self) -> bool:
        """Whether the fault that the question is about shows."""
        return self.score is not None and self.score >= 1


def unknown(question: str, reason: str, advice: str = "") -> Answer:
    """Return the answer of a detector that lacks what it needs."""
    return Answer(question, "cannot tell", 0.0, evidence=(reason,), advice=advice)


def confidence(score: float, tokens: int) -> float:
    """How sure a verdict is: 0.5 with a score at its threshold 1, more the farther away it is.

    A logistic curve in log score, flatter for fewer than `FEW` tokens. How often answers of each level are
    right was counted on planted logs: see docs/diagnosis.md.
    """
    distance = abs(np.log(max(score, 1e-6)))
    steepness = STEEPNESS * min(1.0, np.sqrt(tokens / FEW))
    return float(1 / (1 + np.exp(-steepness * min(distance, 2.3))))
