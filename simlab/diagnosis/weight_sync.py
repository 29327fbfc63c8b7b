"""FP8 noise, or weights that did not arrive?

Rounding moves every logit a little and at random: the same token errs up and down alike, tokens of one
probability err alike, and it is the same on every day of the run. Wrong weights err in the same direction
whenever a token comes up, or hit a few tokens by nats, or grow as the trainer walks away from them.
"""

from dataclasses import replace

import numpy as np

from simlab.diagnosis.answer import Answer, confidence, unknown
from simlab.diagnosis.log import TokenLog, log_rho
from simlab.diagnosis.rank_tests import by_class, rms, shared_by_class
from simlab.diagnosis.routing import flips

QUESTION = "number formats, or a broken weight sync?"

# A number of `signs` over its limit here is a score; docs/diagnosis.md has what rounding was seen to reach.
LIMITS = {"level": 0.8, "same_sign": 0.08, "outliers": 1.0, "growth": 2.5}
BF16, FP8 = 0.05, 0.4
"""Mean |log rho| up to which a mismatch is of the size that BF16 (0.01 seen) and FP8 (0.27 seen) make."""


def signs(
    log_rho: np.ndarray, logp_infer: np.ndarray, step: np.ndarray, ids: np.ndarray | None
) -> dict[str, float]:
    """What tells wrong weights from rounding, from arrays over tokens [N]; NaN where the log is silent.

    - level: mean |log rho|, nats.
    - same_sign: share of the variance of log rho that the token's id explains.
    - outliers: nats by which few tokens are off while most are not: RMS log rho, unless the median is
      more than a tenth of it.
    - growth: RMS log rho of the last third of the steps over that of the first third; the largest 5% are
      pulled in.

    All but the level look at tokens of probability 0.1 to 0.9 only, so that a change of entropy is not
    mistaken for a change of mismatch.
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
        found["same_sign"] = shared_by_class(x, ids[middle])
    limit = np.quantile(np.abs(x), 0.95)
    steps, per_step = by_class(np.clip(x, -limit, limit), step[middle])
    if len(steps) >= 6:
        third = len(steps) // 3
        early = rms(per_step[:third])
        found["growth"] = rms(per_step[-third:]) / early if early > 0 else np.nan
    return found


def weight_sync(log: TokenLog) -> Answer:
    """Answer `QUESTION` for a log; tokens known to be stale, or routed differently, are left out."""
    log, left_out = _comparable(log)
    count = len(log.logp_train)
    if count < 50:
        return unknown(QUESTION, f"{count} tokens are too few")
    found = signs(log_rho(log), log.logp_infer, log.of_token(log.step), log.ids)
    scores = {name: found[name] / limit for name, limit in LIMITS.items() if np.isfinite(found[name])}
    ranked = sorted(scores, key=lambda name: -scores[name])
    loudest = ranked[0]
    score = float(scores[loudest])
    sure = confidence(score, count)
    if loudest == "growth" and score >= 1 and sum(value >= 1 for value in scores.values()) == 1:
        sure = min(sure, 0.7)
    return Answer(
        QUESTION,
        _verdict(found["level"], [name for name in ranked if scores[name] >= 1]),
        sure,
        score,
        (*(_said(name, value) for name, value in found.items()), *left_out),
        _advice(score, loudest, log),
    )


def _comparable(log: TokenLog) -> tuple[TokenLog, tuple[str, ...]]:
    said = []
    if log.version is not None:
        lag = log.step - log.version
        if (lag > lag.min()).any():
            said.append(f"sequences sampled more than {lag.min()} updates ago are left out")
            log = log.where(lag == lag.min())
    if log.experts_train is not None and log.experts_infer is not None:
        flipped = flips(log.experts_train, log.experts_infer, log.top_k)
        if 0 < flipped.mean() < 0.5:
            said.append("tokens whose experts differ are left out")
            log = replace(log, mask=log.mask & ~flipped).real()
    return log, tuple(said)


def _verdict(level: float, shown: list[str]) -> str:
    """In words, given the signs that show, the loudest first."""
    if shown[1:] and shown[0] == "growth":
        return "broken weight sync: the engine's weights stand still while the trainer's move"
    if shown:
        return {
            "level": "broken weight sync: the engines are not running the same weights",
            "same_sign": "broken weight sync: the same tokens err in the same direction",
            "outliers": "broken weight sync: a few tokens are off by nats (a layer or expert)",
            "growth": "stuck weight sync, or a mismatch that training itself makes grow",
        }[shown[0]]
    if level == 0:
        return "the engines agree to the last bit, or one log-prob is a copy of the other (verl: bypass_mode)"
    if level <= BF16:
        return "number formats: as small as BF16 noise" if level > 1e-5 else "the engines agree"
    return "number formats: the size of FP8 noise" if level <= FP8 else "number formats: coarser than FP8"


def _said(name: str, value: float) -> str:
    text = {
        "level": "mean |log rho| {:.3g} nats (BF16 about 0.01, FP8 up to 0.3)",
        "same_sign": "the token's id explains {:.1%} of log rho (rounding: under 6%)",
        "outliers": "few tokens off by {:.2g} nats while most are not (rounding: under 0.8)",
        "growth": "RMS log rho at fixed probability, last third of the steps over the first: {:.2f}",
    }[name]
    silent = {
        "same_sign": "no ids in the log: whether the same tokens err alike is not known",
        "growth": "fewer than 6 steps: growth is not known",
        "outliers": "too few tokens of probability 0.1 to 0.9 to look at their profile",
    }
    return text.format(value) if np.isfinite(value) else silent.get(name, name)


def _advice(score: float, loudest: str, log: TokenLog) -> str:
    if score < 1:
        return "" if log.ids is not None else "log `ids`: wrong rows of the head show by token"
    if loudest == "growth":
        return "restart the rollout engine from the current checkpoint: growth that stays is not the sync"
    return "score one probe prompt in both engines right after a sync; reload, and compare again"
