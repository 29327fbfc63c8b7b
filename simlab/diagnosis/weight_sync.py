"""Tell rounding from a broken weight sync.

Rounding moves every logit slightly and at random: the sign of the error varies for one token, its size
depends on the probability only, and it is constant over the run. Wrong weights err in the same direction
for one token, or by nats for a few tokens, or increasingly while the training weights move.
"""

from dataclasses import replace

import numpy as np

from simlab.diagnosis.answer import Answer, estimate_confidence, unknown_answer
from simlab.diagnosis.log import TokenLog, log_rho
from simlab.diagnosis.rank_tests import intraclass_correlation, rms, rms_by_class
from simlab.diagnosis.routing import find_flips

QUESTION = "number formats, or a broken weight sync?"

# A score is a sign divided by its limit. docs/diagnosis.md reports the largest signs of rounding.
LIMITS = {"level": 0.8, "same_sign": 0.08, "outliers": 1.0, "growth": 2.5}
BF16, FP8 = 0.05, 0.4
"""Largest mean |log rho| that counts as BF16 noise (0.01 measured) and as FP8 noise (0.27 measured)."""


def measure_signs(
    log_rho: np.ndarray, logp_infer: np.ndarray, step: np.ndarray, ids: np.ndarray | None
) -> dict[str, float]:
    """Measure the signs of wrong weights from arrays over tokens [N].

    Returns:
        level: Mean |log rho|, nats.
        same_sign: Fraction of the variance of log rho that the token id explains.
        outliers: RMS log rho, nats, reduced if the median |log rho| is more than a tenth of it.
        growth: RMS log rho of the last third of the steps over that of the first third, winsorized at 95%.

    All but the level use tokens of probability 0.1 to 0.9 only, so that a change of entropy does not look
    like a change of mismatch. A sign that the log cannot give is NaN.
    """
    probs = np.exp(logp_infer)
    middle = (probs > 0.1) & (probs < 0.9)
    x = log_rho[middle]
    found = {
        "level": float(np.abs(log_rho).mean()),
        "same_sign": np.nan,
        "outliers": np.nan,
        "growth": np.nan,
    }
    if len(x) < 50:
        return found
    spread = rms(x)
    median = float(np.median(np.abs(x)))
    found["outliers"] = min(spread, 0.1 * spread / median) if median > 0 else spread
    if ids is not None:
        found["same_sign"] = intraclass_correlation(x, ids[middle])
    limit = np.quantile(np.abs(x), 0.95)
    steps, per_step = rms_by_class(np.clip(x, -limit, limit), step[middle])
    if len(steps) >= 6:
        third = len(steps) // 3
        early = rms(per_step[:third])
        found["growth"] = rms(per_step[-third:]) / early if early > 0 else np.nan
    return found


def detect_weight_sync(log: TokenLog) -> Answer:
    """Answer `QUESTION` for a log without the tokens that are stale or routed differently."""
    log, exclusions = _exclude_other_causes(log)
    count = len(log.logp_train)
    if count < 50:
        return unknown_answer(QUESTION, f"{count} tokens; the test needs 50")
    found = measure_signs(log_rho(log), log.logp_infer, log.spread_to_tokens(log.step), log.ids)
    scores = {name: found[name] / limit for name, limit in LIMITS.items() if np.isfinite(found[name])}
    ranked = sorted(scores, key=lambda name: -scores[name])
    strongest = ranked[0]
    score = float(scores[strongest])
    confidence = estimate_confidence(score, count)
    if strongest == "growth" and score >= 1 and sum(value >= 1 for value in scores.values()) == 1:
        confidence = min(confidence, 0.7)
    return Answer(
        QUESTION,
        _verdict(found["level"], [name for name in ranked if scores[name] >= 1]),
        confidence,
        score,
        (*(_format_evidence(name, value) for name, value in found.items()), *exclusions),
        _recommend(score, strongest, log),
    )


def _exclude_other_causes(log: TokenLog) -> tuple[TokenLog, tuple[str, ...]]:
    notes = []
    if log.version is not None:
        lag = log.step - log.version
        if (lag > lag.min()).any():
            notes.append(f"excludes sequences more than {lag.min()} updates old")
            log = log.select_sequences(lag == lag.min())
    if log.experts_train is not None and log.experts_infer is not None:
        flipped = find_flips(log.experts_train, log.experts_infer, log.top_k)
        if 0 < flipped.mean() < 0.5:
            notes.append("excludes tokens with different experts")
            log = replace(log, mask=log.mask & ~flipped).drop_masked()
    return log, tuple(notes)


def _verdict(level: float, shown: list[str]) -> str:
    """Return the verdict for the signs above their limits, the strongest first."""
    if shown[1:] and shown[0] == "growth":
        return "broken weight sync: the inference weights stay constant while the training weights move"
    if shown:
        return {
            "level": "broken weight sync: the engines run different weights",
            "same_sign": "broken weight sync: the same tokens err in the same direction",
            "outliers": "broken weight sync: a few tokens are off by nats (a layer or expert)",
            "growth": "stuck weight sync, or a mismatch that grows through training itself",
        }[shown[0]]
    if level == 0:
        return "the engines are bitwise identical, or one log-prob is a copy of the other (verl: bypass_mode)"
    if level <= BF16:
        return "number formats: as small as BF16 noise" if level > 1e-5 else "the engines agree"
    return "number formats: the size of FP8 noise" if level <= FP8 else "number formats: coarser than FP8"


def _format_evidence(name: str, value: float) -> str:
    text = {
        "level": "mean |log rho| {:.3g} nats (BF16 about 0.01, FP8 up to 0.3)",
        "same_sign": "the token id explains {:.1%} of the variance of log rho (rounding: under 6%)",
        "outliers": "RMS log rho of few outliers {:.2g} nats (rounding: under 0.8)",
        "growth": "RMS log rho at fixed probability, last third of the steps over the first: {:.2f}",
    }[name]
    unmeasured = {
        "same_sign": "no ids in the log: error per token id not measured",
        "growth": "fewer than 6 steps: growth not measured",
        "outliers": "too few tokens of probability 0.1 to 0.9: outliers not measured",
    }
    return text.format(value) if np.isfinite(value) else unmeasured.get(name, name)


def _recommend(score: float, strongest: str, log: TokenLog) -> str:
    if score < 1:
        return "" if log.ids is not None else "log `ids`: the error per token id shows wrong rows of the head"
    if strongest == "growth":
        return "restart the inference engine from the current checkpoint: growth that stays is not the sync"
    return "score one probe prompt in both engines right after a sync; reload, and compare again"
