"""What theory says at the dose of this run: how many samples sequence weights leave, and which correction."""

from functools import cache

import numpy as np

from simlab.diagnosis.answer import Answer, confidence, unknown
from simlab.diagnosis.log import TokenLog, log_rho
from simlab.models.tabular import enumerate_sequences
from simlab.theory.budget import budget
from simlab.theory.correction_moments import CORRECTIONS, dose_for, qualities
from simlab.theory.expectation import PolicyPair, noisy_pair, random_logits, random_rewards

VANISH = "will sequence-level IS vanish at this length?"
CORRECT = "which correction does theory recommend at this dose?"
GONE, HALF = 0.1, 0.5
"""Share of the samples below which sequence weights have vanished, and below which they cost much."""

# What the frameworks offer, by the names of verl.
OFFERED = {
    "none": "no correction",
    "token TIS": "token TIS: rollout_is=token, rollout_is_threshold=2",
    "token MIS": "token MIS: rollout_is=token, rollout_is_threshold='1e-30_2'",
    "geometric TIS": "geometric TIS (slime: tis_level geometric)",
    "sequence TIS": "sequence TIS: rollout_is=sequence, rollout_is_threshold=2",
    "sequence MIS": "sequence MIS: rollout_is=sequence, rollout_is_threshold='1e-30_2'",
}
SMALLEST_DOSE, LARGEST_DOSE = 0.01, 4.0
LENGTH, POLICIES, GROUP = 4, 2, 8


def dose(log_rho: np.ndarray, lengths: np.ndarray) -> tuple[float, float]:
    """-log of the expected share of samples that sequence weights leave, by two routes.

    By independent tokens, T log(1 + std(rho)^2); and by the spread of the sums of log rho over sequences,
    which sees what tokens have in common. Equal for small independent errors.

    Source: lr Eq. 4; hacking Eq. 5.
    """
    real = lengths[lengths > 0]
    rho = np.exp(log_rho, dtype=np.float64)
    by_tokens = -np.log(budget(float(rho.std()), max(1, round(float(real.mean())))).ess + 1e-300)
    sums = np.bincount(np.repeat(np.arange(len(real)), real), log_rho.astype(np.float64), len(real))
    return float(by_tokens), float(sums.var(ddof=1)) if len(real) > 1 else float(by_tokens)


def vanishing(log: TokenLog) -> Answer:
    """Answer `VANISH` for a log."""
    if not len(log.logp_train):
        return unknown(VANISH, "no tokens")
    x = log_rho(log)
    tokens, sums = dose(x, log.lengths)
    share = float(np.exp(-np.mean((tokens, sums))))
    std = float(np.exp(x, dtype=np.float64).std())
    length = round(float(log.lengths[log.lengths > 0].mean()))
    allowed = budget(std, length)
    verdict = "yes" if share < GONE else "it will cost much" if share < HALF else "no"
    score = float(np.mean((tokens, sums)) / -np.log(GONE))
    # The two routes disagree where few large ratios decide; then nobody is sure.
    doubt = abs(tokens - sums) / max(tokens + sums, 1e-9)
    return Answer(
        VANISH,
        f"{verdict}: sequence weights leave {_small(share)} of the samples",
        confidence(score, len(x)) * (1 - 0.4 * doubt),
        score,
        (
            f"std(rho) {std:.3g}, mean length {length}: (1 + std^2)^-T = {_small(np.exp(-tokens))}",
            f"from the spread of the sums of log rho over sequences: {_small(np.exp(-sums))}",
            f"half is left after {allowed.length_at_half_ess:.3g} tokens, or with "
            f"std(rho) {allowed.rho_std_for_half_ess:.2g} at this length",
        ),
    )


def _small(share: float) -> str:
    return f"{share:.2g}" if share >= 1e-99 else "under 1e-99"


def recommended(log: TokenLog) -> Answer:
    """Answer `CORRECT`: least mean squared error of the policy gradient, exactly, at the dose of the log.

    On random policies small enough to enumerate, with the mismatch scaled to leave as many samples, over
    the number of groups in a step. It is about one step; what a correction does to a run is not.
    """
    if not len(log.logp_train):
        return unknown(CORRECT, "no tokens")
    found = float(np.mean(dose(log_rho(log), log.lengths)))
    groups = _groups(log)
    if found < SMALLEST_DOSE:
        return Answer(
            CORRECT, OFFERED["none"], 0.9, evidence=(f"dose {found:.2g}: sequence weights are one",)
        )
    if found > LARGEST_DOSE:
        return Answer(
            CORRECT,
            OFFERED["token TIS"] + "; and a smaller mismatch, no sequence weight can work",
            0.7,
            evidence=(
                f"dose {found:.3g}: sequence weights leave {_small(np.exp(-found))} of the samples",
                "token weights have a bounded spread, and keep most of the bias of long sequences",
            ),
            advice="shorter responses, a finer format, an exact engine pair, or a lower learning rate",
        )
    # On a grid, so that equal runs get equal answers and the sums are done once.
    errors = errors_at(float(np.round(found, 2)), groups)
    order = sorted(errors, key=lambda name: errors[name])
    gain = errors["none"] / errors[order[0]]
    best = order[0] if gain > 1.05 else "none"
    runner_up = next(name for name in order if name != best)
    return Answer(
        CORRECT,
        OFFERED[best],
        float(np.clip(0.5 + 0.5 * abs(np.log(errors[runner_up] / errors[best])) / np.log(1.5), 0.5, 0.9)),
        evidence=(
            f"dose {found:.2g}, {groups} groups a step",
            "mean squared error of the gradient over its square: "
            + ", ".join(f"{name} {errors[name]:.3f}" for name in order),
            *(("none is 5% better than no correction",) if best == "none" and order[0] != "none" else ()),
        ),
    )


def _groups(log: TokenLog) -> int:
    steps = max(1, len(np.unique(log.step)))
    if log.group is None:
        return max(1, log.sequences // GROUP // steps)
    return max(1, len(np.unique(log.group)) // steps)


@cache
def errors_at(dose: float, groups: int) -> dict[str, float]:
    """Mean squared error of the gradient under each correction of `OFFERED`, relative to its square.

    Source: lr Eq. 2-6, 11.
    """
    chosen = {name: CORRECTIONS[name] for name in OFFERED}
    total = dict.fromkeys(OFFERED, 0.0)
    space = enumerate_sequences(3, LENGTH)
    for seed in range(POLICIES):
        logits = random_logits(space, seed)

        def pair(noise: float, logits: np.ndarray = logits, seed: int = seed) -> PolicyPair:
            return noisy_pair(space, logits, noise, seed)

        at_dose = dose_for(float(np.sqrt(np.expm1(dose / LENGTH))), pair)
        rewards = random_rewards(space, seed)
        for name, quality in qualities(at_dose, rewards, GROUP, corrections=chosen).items():
            total[name] += quality.mse(groups) / POLICIES
    return total
