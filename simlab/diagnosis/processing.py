"""Tell precision from log-probabilities of a processed distribution: top-p, top-k, temperature.

A processed distribution has no mass outside its support. Some log-probabilities are exactly 0, and the mean
of rho is below 1, because the training engine puts mass where the inference engine cannot sample. A
temperature scales the logit of the token's probability.
"""

import numpy as np

from simlab.diagnosis.answer import Answer, estimate_confidence, unknown_answer
from simlab.diagnosis.log import LOWEST, TokenLog, log_rho

QUESTION = "precision, or processing by top-p, top-k or temperature?"


def measure_signs(logp_train: np.ndarray, logp_infer: np.ndarray, log_rho: np.ndarray) -> dict[str, float]:
    """Measure the signs of processing from arrays over tokens [N].

    Returns:
        certain: Fraction of tokens with pi_infer = 1 exactly and pi_train at least 2% off.
        holes: Fraction of tokens to which exactly one engine gives no probability.
        lost: 1 - mean rho, the mass of pi_train where the inference engine cannot sample. 0 unless it is
            eight standard errors away and twice the effect of noise (half the mean square of log rho).
        slope: Median of logit(pi_train) / logit(pi_infer) for tokens above one half: the temperature.
        spread: Interquartile range of that ratio.
    """
    holes = (logp_train <= LOWEST) != (logp_infer <= LOWEST)
    rho = np.exp(np.minimum(log_rho, 20.0), dtype=np.float64)
    lost = 1 - float(rho.mean())
    error = float(rho.std()) / np.sqrt(len(rho))
    k1, k2 = -float(log_rho.mean()), float(np.mean(np.square(log_rho, dtype=np.float64))) / 2
    probs = np.exp(logp_infer, dtype=np.float64)
    likely = (probs > 0.55) & (probs < 0.999)
    found = {
        "certain": float(np.mean((logp_infer == 0) & (logp_train < -0.02))),
        "holes": float(holes.mean()),
        "lost": lost if lost > 8 * error and k1 > 2 * k2 else 0.0,
        "slope": np.nan,
        "spread": np.nan,
    }
    if likely.sum() >= 50:
        trained = np.clip(np.exp(logp_train[likely], dtype=np.float64), 1e-12, 1 - 1e-12)
        inferred = probs[likely]
        ratio = np.log(trained / (1 - trained)) / np.log(inferred / (1 - inferred))
        low, middle, high = np.quantile(ratio, (0.25, 0.5, 0.75))
        found |= {"slope": float(middle), "spread": float(high - low)}
    return found


def detect_processing(log: TokenLog) -> Answer:
    """Answer `QUESTION` for a log."""
    count = len(log.logp_train)
    if count < 50:
        return unknown_answer(QUESTION, f"{count} tokens; the test needs 50")
    found = measure_signs(log.logp_train, log.logp_infer, log_rho(log))
    support = max(found["certain"] / 0.03, found["holes"] / 0.005, found["lost"] / 0.003)
    heat = 0.0
    if np.isfinite(found["slope"]):
        # Rounding changes the slope too, by about half the square of its effect on one logit.
        tolerance = 0.05 + 0.25 * found["spread"] ** 2
        heat = abs(found["slope"] - 1) / tolerance
    score = float(max(support, heat))
    evidence = (
        f"pi_infer = 1 exactly, pi_train not: {found['certain']:.2%} of the tokens",
        f"zero probability in exactly one engine: {found['holes']:.2%} of the tokens",
        f"mass of pi_train outside the support of pi_infer: {found['lost']:.2%}",
        f"logit(pi_train) / logit(pi_infer): median {found['slope']:.3f}, IQR {found['spread']:.2f}",
    )
    return Answer(
        QUESTION,
        _verdict(score, support, found),
        estimate_confidence(score, count),
        score,
        evidence,
        _RECOMMENDATION if score >= 1 else "",
    )


_RECOMMENDATION = (
    "vLLM: logprobs_mode=raw_logprobs scores before processing, processed_logprobs (verl's) after it; "
    "divide the training engine's logits by the same temperature, or sample at top_p=1, top_k=-1"
)


def _verdict(score: float, support: float, found: dict[str, float]) -> str:
    if score < 1:
        return "precision: no sign of processing"
    if support >= 1:
        kind = "top-p" if found["certain"] >= 0.03 else "top-k, min-p or a mask"
        return f"processed: renormalized over part of the vocabulary ({kind})"
    return f"processed: temperature about {found['slope']:.2f} in the inference engine, 1 in training"
