"""Corrections and trust regions of 2026 at theta_old, as weights whose exact moments can be computed.

At theta_old the current policy p is the old one q, so w = p / mu is rho and every PPO ratio is one. What
is left of a trust region around mu is a weight per token that may depend on the sign of the advantage.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

from simlab.models.tabular import SequenceSpace
from simlab.theory.correction_moments import Correction, reject_sequences, sequence_mean, token_log_rho
from simlab.theory.expectation import PolicyPair, expect, noisy_pair, random_logits
from simlab.theory.group_moments import Weighting, fix_weights

Signed = Callable[[PolicyPair, int], Float[np.ndarray, "S T"]]


def by_sign(weights: Signed) -> Correction:
    """Return weights [S, T] that depend on the sign of the sample's advantage."""

    def compute_weighting(pair: PolicyPair) -> Weighting:
        count = len(pair.probs_infer)
        return Weighting(lambda _, sign: weights(pair, sign), np.zeros(count), np.ones(count, bool))

    return compute_weighting


def _rho(pair: PolicyPair) -> np.ndarray:
    return np.exp(token_log_rho(pair))


def _gap(pair: PolicyPair) -> np.ndarray:
    """Return pi_train - pi_infer of the sampled token [S, T]."""
    return np.exp(pair.logp_train) - np.exp(pair.logp_infer)


def binary_kl(
    x: Float[np.ndarray, "*S"], y: Float[np.ndarray, "*S"], floor: float
) -> Float[np.ndarray, "*S"]:
    """Return D(x, y) of the distributions (x, 1 - x) and (y, 1 - y), each probability at least `floor`.

    Reference: DPPO arXiv 2602.04879; AReaL functional.py metric binary_kl.
    """
    (x, rest_x), (y, rest_y) = ((np.maximum(z, floor), np.maximum(1 - z, floor)) for z in (x, y))
    return x * np.log(x / y) + rest_x * np.log(rest_x / rest_y)


def keep_tv(pair: PolicyPair, sign: int, bound: float = 0.2) -> Bool[np.ndarray, "S T"]:
    """Return for each token whether DPPO-Binary-TV keeps it.

    Reference: DPPO arXiv 2602.04879.
    """
    return sign * _gap(pair) <= bound


def keep_kl(pair: PolicyPair, sign: int, bound: float = 0.05) -> Bool[np.ndarray, "S T"]:
    """Return for each token whether DPPO-Binary-KL keeps it.

    Reference: DPPO arXiv 2602.04879.
    """
    divergence = binary_kl(np.exp(pair.logp_infer), np.exp(pair.logp_train), 1e-12)
    return (divergence <= bound) | (sign * _gap(pair) <= 0)


def keep_ipo(pair: PolicyPair, sign: int, bound: float = 0.3) -> Bool[np.ndarray, "S T"]:
    """Return for each token whether IPO keeps it.

    Reference: prime-rl trainer/rl/loss.py ipo.
    """
    del sign
    return np.abs(_gap(pair)) <= bound


def keep_kpop(pair: PolicyPair, sign: int, bound: float = 0.1) -> Bool[np.ndarray, "S T"]:
    """Return for each token whether KPop keeps it.

    Reference: KPop, Ring blog of 2026-05-26; AReaL functional.py metric binary_kl.
    """
    del sign
    p, mu = np.exp(pair.logp_train), np.exp(pair.logp_infer)
    return np.maximum(binary_kl(p, mu, 1e-8), binary_kl(mu, p, 1e-8)) <= bound


def keep_icepop(pair: PolicyPair, sign: int, low: float = 0.5, high: float = 5.0) -> Bool[np.ndarray, "S T"]:
    """Return for each token whether IcePop keeps it.

    Reference: verl RolloutCorrectionConfig.decoupled_token_icepop.
    """
    del sign
    rho = _rho(pair)
    return (rho >= low) & (rho <= high)


def drpo(pair: PolicyPair, sign: int, delta: float = 12.5) -> Float[np.ndarray, "S T"]:
    """Return rho (1 - sign(A) (p - mu) / delta).

    Reference: DRPO arXiv 2606.09821.
    """
    return _rho(pair) * (1 - sign * _gap(pair) / delta)


def vaco(pair: PolicyPair, sign: int, bound: float = 0.3, clip: float = 2.0) -> Float[np.ndarray, "S T"]:
    """Return min(rho, clip), zero at tokens that push a sequence of mean |rho - 1| > `bound` further away.

    Reference: VaCO arXiv 2603.01365; open-instruct rho_mask_tv_divergence.
    """
    rho, log_rho = _rho(pair), token_log_rho(pair)
    far = sequence_mean(pair, np.abs(rho - 1))[:, None] > bound
    return np.where(far & (np.sign(log_rho) * sign > 0), 0.0, np.minimum(rho, clip))


def vespo(pair: PolicyPair, sign: int, cap: float = 3.0) -> Float[np.ndarray, "S T"]:
    """Return phi of the product of min(rho, cap) over the sequence.

    Reference: VESPO arXiv 2602.10693; TRL loss_type vespo.
    """
    k, scale = (2.0, 3.0) if sign > 0 else (3.0, 2.0)
    logs = np.minimum(token_log_rho(pair), np.log(cap))
    total = np.clip(logs.sum(1, keepdims=True), np.log(1e-8), 20.0)
    return np.broadcast_to(np.exp(scale + k * total - scale * np.exp(total)), logs.shape)


def drop_tokens(
    keep: Callable[[PolicyPair, int], Bool[np.ndarray, "S T"]], cap: float = np.inf
) -> Correction:
    """Return weights min(rho, cap) of the tokens that `keep` [S, T] selects; denominators are unchanged."""
    return by_sign(lambda pair, sign: np.minimum(_rho(pair), cap) * keep(pair, sign))


def remove_tokens(keep: Callable[[PolicyPair], Bool[np.ndarray, "S T"]]) -> Correction:
    """Return weights of one; other tokens leave the loss, and empty sequences the baseline."""

    def compute_weighting(pair: PolicyPair) -> Weighting:
        in_loss = keep(pair) & pair.space.mask
        return fix_weights(in_loss.astype(np.float64), np.asarray(in_loss.any(1)))

    return compute_weighting


RECENT: dict[str, Correction] = {
    "DPPO-TV": drop_tokens(keep_tv, 20.0),
    "DPPO-KL": drop_tokens(keep_kl, 20.0),
    "IPO": drop_tokens(keep_ipo, 1e4),
    "KPop": drop_tokens(keep_kpop),
    "DRPO": by_sign(drpo),
    "VaCO": by_sign(vaco),
    "VESPO": by_sign(vespo),
    "KPop mask": remove_tokens(lambda pair: keep_kpop(pair, 1)),
    "probability difference": remove_tokens(lambda pair: np.abs(_gap(pair)) <= 0.2),
    "trust region mask": reject_sequences(lambda pair: (token_log_rho(pair) ** 2 / 2).max(1) <= 0.05),
}
"""The corrections of 2026 with their default numbers; `counterparts` maps them to objectives."""

KEEPS: dict[str, Callable[[PolicyPair, int], np.ndarray]] = {
    "DPPO-TV": keep_tv,
    "DPPO-KL": keep_kl,
    "IPO": keep_ipo,
    "KPop": keep_kpop,
    "IcePop": keep_icepop,
}


def mask_fractions(pair: PolicyPair) -> dict[str, float]:
    """Return the fraction of sampled tokens that each trust region drops, the mean over both signs of A.

    Reference: KPop, Ring blog of 2026-05-26 (IcePop drops fewer tokens while the gap widens).
    """
    weights = pair.probs_infer[:, None] * pair.space.mask
    weights = weights / weights.sum()
    return {
        name: float(np.mean([(weights * ~keep(pair, sign)).sum() for sign in (1, -1)]))
        for name, keep in KEEPS.items()
    }


def sharpen_pair(space: SequenceSpace, seed: int, scale: float, noise: float) -> PolicyPair:
    """Return the pair of N(0, 1.5^2) logits times `scale`, whose engine adds N(0, noise^2) to them."""
    logits = scale * random_logits(space, seed)
    return noisy_pair(space, logits, noise, seed)


FAMILIES: dict[str, list[tuple[float, float]]] = {
    "more noise": [(1.0, noise) for noise in (0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)],
    "sharper policy": [(scale, 0.5) for scale in (0.5, 1.0, 2.0, 4.0, 8.0)],
    "both": [(scale, 0.3 * scale) for scale in (0.5, 1.0, 2.0, 4.0, 8.0)],
}
"""Scales of the logits with the engine's noise on them: three ways in which engines drift apart in a run."""


def token_kl(pair: PolicyPair) -> float:
    """Return the mean of KL(pi_infer, pi_train) per sampled token, in nats: the gap between the engines.

    Reference: hacking Eq. 5.
    """
    total = -expect(pair.probs_infer, token_log_rho(pair).sum(1))
    return total / expect(pair.probs_infer, pair.space.lengths)
