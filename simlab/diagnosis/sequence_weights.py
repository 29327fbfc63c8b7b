"""Apply theory at the mismatch of a run: ESS of sequence-level IS weights, and the best correction."""

from functools import cache

import numpy as np

from simlab.diagnosis.answer import Answer, estimate_confidence, unknown_answer
from simlab.diagnosis.log import TokenLog, log_rho
from simlab.theory.budget import budget
from simlab.theory.correction_moments import CORRECTIONS, qualities, random_pair
from simlab.theory.expectation import random_rewards

VANISH = "will sequence-level IS vanish at this length?"
CORRECT = "which correction does theory recommend at this mismatch?"
VANISHED, COSTLY = 0.1, 0.5
"""ESS, as a fraction of the samples, below which sequence weights have vanished, or are costly."""

# The corrections of the frameworks, with verl's options.
OFFERED = {
    "none": "no correction",
    "token TIS": "token TIS: rollout_is=token, rollout_is_threshold=2",
    "token MIS": "token MIS: rollout_is=token, rollout_is_threshold='1e-30_2'",
    "geometric TIS": "geometric TIS (slime: tis_level geometric)",
    "sequence TIS": "sequence TIS: rollout_is=sequence, rollout_is_threshold=2",
    "sequence MIS": "sequence MIS: rollout_is=sequence, rollout_is_threshold='1e-30_2'",
}
MIN_ESS_LOSS, MAX_ESS_LOSS = 0.01, 4.0
LENGTH, POLICIES, GROUP = 4, 2, 8


def measure_ess_loss(log_rho: np.ndarray, lengths: np.ndarray) -> tuple[float, float]:
    """Return -log of the expected ESS fraction of sequence weights, by two estimators.

    The first assumes independent tokens: T log(1 + std(rho)^2). The second is the variance of the sums of
    log rho [N] over sequences of `lengths` [S], which includes correlations. Both are equal for small
    independent errors.

    Reference: lr Eq. 4; hacking Eq. 5.
    """
    real = lengths[lengths > 0]
    rho = np.exp(log_rho, dtype=np.float64)
    by_tokens = -np.log(budget(float(rho.std()), max(1, round(float(real.mean())))).ess + 1e-300)
    sums = np.bincount(np.repeat(np.arange(len(real)), real), log_rho.astype(np.float64), len(real))
    return float(by_tokens), float(sums.var(ddof=1)) if len(real) > 1 else float(by_tokens)


def predict_vanishing(log: TokenLog) -> Answer:
    """Answer `VANISH` for a log."""
    if not len(log.logp_train):
        return unknown_answer(VANISH, "no tokens")
    x = log_rho(log)
    tokens, sums = measure_ess_loss(x, log.lengths)
    share = float(np.exp(-np.mean((tokens, sums))))
    std = float(np.exp(x, dtype=np.float64).std())
    length = round(float(log.lengths[log.lengths > 0].mean()))
    allowed = budget(std, length)
    verdict = "yes" if share < VANISHED else "it will cost much" if share < COSTLY else "no"
    score = float(np.mean((tokens, sums)) / -np.log(VANISHED))
    # The estimators disagree where a few large ratios dominate, which lowers the confidence.
    disagreement = abs(tokens - sums) / max(tokens + sums, 1e-9)
    return Answer(
        VANISH,
        f"{verdict}: sequence weights leave {_format_fraction(share)} of the samples",
        estimate_confidence(score, len(x)) * (1 - 0.4 * disagreement),
        score,
        (
            *_explain_losses(tokens, sums, std, length),
            f"the ESS halves at {allowed.length_at_half_ess:.3g} tokens, or at "
            f"std(rho) {allowed.rho_std_for_half_ess:.2g} with this length",
        ),
    )


def _explain_losses(tokens: float, sums: float, std: float, length: int) -> tuple[str, ...]:
    """Return the two estimates of the ESS; where they contradict each other, the reason."""
    by_tokens = (
        f"std(rho) {std:.3g}, mean length {length}: (1 + std^2)^-T = {_format_fraction(np.exp(-tokens))}"
    )
    by_sums = f"from the variance of the sums of log rho over sequences: {_format_fraction(np.exp(-sums))}"
    if max(tokens, sums) < 2 * min(tokens, sums) + 0.2:
        return by_tokens, by_sums
    if tokens > sums:
        why = (
            "a few large ratios dominate std(rho), or errors within a sequence cancel; the verdict is between"
        )
    else:
        why = "errors within a sequence have one sign and add up; the verdict is between"
    return by_sums, f"the formula for independent tokens gives {_format_fraction(np.exp(-tokens))}: {why}"


def _format_fraction(share: float) -> str:
    if share >= 0.1:
        return f"{share:.0%}"
    return f"{100 * share:.2g}%" if share >= 1e-6 else "under 0.0001%"


def recommend_correction(log: TokenLog) -> Answer:
    """Answer `CORRECT`: the correction with the least mean squared error of the policy gradient.

    The error is exact, on random policies small enough to enumerate, with the mismatch scaled to the same
    ESS loss and with the number of groups per step. It describes one step, not the effect on a run.
    """
    if not len(log.logp_train):
        return unknown_answer(CORRECT, "no tokens")
    ess_loss = float(np.mean(measure_ess_loss(log_rho(log), log.lengths)))
    groups = _groups(log)
    if ess_loss < MIN_ESS_LOSS:
        return Answer(
            CORRECT, OFFERED["none"], 0.9, evidence=(f"ESS loss {ess_loss:.2g}: sequence weights are 1",)
        )
    if ess_loss > MAX_ESS_LOSS:
        return Answer(
            CORRECT,
            OFFERED["token TIS"] + "; and reduce the mismatch: sequence weights cannot work",
            0.7,
            evidence=(
                f"ESS loss {ess_loss:.3g}: the ESS fraction is {_format_fraction(np.exp(-ess_loss))}",
                "token weights have a bounded variance and keep most of the bias of long sequences",
            ),
            recommendation="shorten responses, or use a finer format, exact engines or a lower learning rate",
        )
    return _compare_corrections(ess_loss, groups)


def _compare_corrections(ess_loss: float, groups: int) -> Answer:
    # Rounding gives similar runs the same answer, from the cache.
    errors = gradient_errors(float(np.round(ess_loss, 2)), groups)
    order = sorted(errors, key=lambda name: errors[name])
    gain = errors["none"] / errors[order[0]]
    best = order[0] if gain > 1.05 else "none"
    is_small = best == "none" and order[0] != "none"
    no_gain = ["no candidate is at least 5% better than training without a correction"] if is_small else []
    runner_up = next(name for name in order if name != best)
    return Answer(
        CORRECT,
        OFFERED[best],
        float(np.clip(0.5 + 0.5 * abs(np.log(errors[runner_up] / errors[best])) / np.log(1.5), 0.5, 0.9)),
        evidence=(
            f"ESS loss {ess_loss:.2g}, {groups} groups per step",
            "relative mean squared error of the gradient: "
            + ", ".join(f"{name} {errors[name]:.3f}" for name in order),
            *no_gain,
        ),
    )


def _groups(log: TokenLog) -> int:
    steps = max(1, len(np.unique(log.step)))
    if log.group is None:
        return max(1, log.num_sequences // GROUP // steps)
    return max(1, len(np.unique(log.group)) // steps)


@cache
def gradient_errors(ess_loss: float, groups: int) -> dict[str, float]:
    """Return the mean squared error of the gradient under each correction, relative to its square.

    Reference: lr Eq. 2-6, 11.
    """
    chosen = {name: CORRECTIONS[name] for name in OFFERED}
    total = dict.fromkeys(OFFERED, 0.0)
    for seed in range(POLICIES):
        pair = random_pair(LENGTH, float(np.sqrt(np.expm1(ess_loss / LENGTH))), seed)
        rewards = random_rewards(pair.space, seed)
        for name, quality in qualities(pair, rewards, GROUP, corrections=chosen).items():
            total[name] += quality.mse(groups) / POLICIES
    return total
