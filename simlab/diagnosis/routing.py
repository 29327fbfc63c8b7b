"""Test whether tokens with different experts in the two engines cause the mismatch."""

import numpy as np

from simlab.diagnosis.answer import Answer, answer_by_score, unknown_answer
from simlab.diagnosis.log import TokenLog, log_rho

QUESTION = "router flips?"


def find_flips(train: np.ndarray, infer: np.ndarray, top_k: int) -> np.ndarray:
    """Return the tokens [N] with different experts in any layer; experts [N, layers x top_k] in any order."""
    shape = (len(train), -1, top_k)
    return (np.sort(train.reshape(shape), 2) != np.sort(infer.reshape(shape), 2)).any((1, 2))


def fraction_from_flips(log_rho: np.ndarray, flipped: np.ndarray) -> float:
    """Return the fraction of the mean squared log rho that is due to the flipped tokens [N]."""
    squares = np.square(log_rho, dtype=np.float64)
    everything = float(squares.mean())
    return 1 - float(squares[~flipped].mean()) / everything if everything > 0 else 0.0


def detect_router_flips(log: TokenLog) -> Answer:
    """Answer `QUESTION` for a log with the experts of both engines."""
    if log.experts_train is None or log.experts_infer is None:
        return unknown_answer(
            QUESTION,
            "the log lacks the experts of one or both engines",
            "MoE: log `experts_infer` (vLLM enable_return_routed_experts) and `experts_train`, or try R3",
        )
    flipped = find_flips(log.experts_train, log.experts_infer, log.top_k)
    if not 20 <= flipped.sum() <= len(flipped) - 20:
        return Answer(
            QUESTION,
            f"{flipped.mean():.1%} of the tokens flip: too few or too many to compare",
            0.9 if not flipped.any() else 0.0,
            0.0 if not flipped.any() else None,
        )
    x = log_rho(log)
    fraction = fraction_from_flips(x, flipped)
    ratio = np.sqrt(np.mean(x[flipped] ** 2) / max(float(np.mean(x[~flipped] ** 2)), 1e-20))
    # Standard error of the fraction for a random choice of as many tokens; the expectation is 0.
    squares = np.square(x, dtype=np.float64)
    error = (
        float(squares.std() / squares.mean()) / np.sqrt(flipped.sum()) * flipped.mean() if x.any() else 1.0
    )
    score = float(max(fraction, 0.0) / max(0.1, 3 * error))
    verdicts = f"router flips cause {fraction:.0%} of the mean squared log rho", "not the router"
    evidence = (
        f"{flipped.mean():.1%} of the tokens have different experts in some layer",
        f"their RMS log rho is {ratio:.1f} times that of the others",
    )
    fix = "routing replay: verl router_replay.mode=R2 or R3, or a router in float32"
    return answer_by_score(QUESTION, score, len(x), verdicts, evidence, fix)
