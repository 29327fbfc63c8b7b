"""ACRL's weight in its eight sign cases, and what an update does to the entropy of the policy."""

import numpy as np
from jaxtyping import Float

from simlab.theory.expectation import safe_log

QUADRANTS = {(1, -1): "I", (1, 1): "II", (-1, 1): "III", (-1, -1): "IV"}
"""(sign of A, sign of pi - mu) to the name in Fig. 3 and 5."""


def acrl_weight(
    advantages: Float[np.ndarray, "*#S"] | np.float64,
    train: Float[np.ndarray, "*S"],
    infer: Float[np.ndarray, "*S"],
    level: float,
    gamma: float,
    clip: float,
) -> Float[np.ndarray, "*S"] | np.float64:
    """Return min((train / infer)^alpha, clip); alpha = gamma sign(A) (1 - level), level = Y / X.

    Reference: acrl Eq. 7-9.
    """
    alpha = gamma * np.sign(advantages) * (1 - level)
    return np.minimum((train / infer) ** alpha, clip)


def sign_cases(gamma: float = 0.65, clip: float = 3.0) -> list[dict]:
    """Return all eight cases: quadrant, Y above or below X, and whether the weight must and does exceed 1.

    Reference: acrl Fig. 2-5, Sec. 3.2, 4.2.
    """
    rows = []
    for (sign, side), name in QUADRANTS.items():
        for level in (1.5, 0.5):
            train, infer = (0.3, 0.2) if side > 0 else (0.2, 0.3)
            weight = float(
                acrl_weight(np.float64(sign), np.array(train), np.array(infer), level, gamma, clip)
            )
            # Above X: enhance what moves pi toward mu. An update moves pi by the sign of A.
            toward = sign * side < 0
            rows.append(
                {
                    "quadrant": name,
                    "level": level,
                    "weight": weight,
                    "enhanced": weight > 1,
                    "expected": toward == (level > 1),
                }
            )
    return rows


def entropy_change(
    probs: Float[np.ndarray, "K V"], scale: Float[np.ndarray, "#K #V"] | float = 1.0
) -> Float[np.ndarray, "K V"]:
    """Return the first-order entropy change `[K, V]` of rows, per unit step of +scale grad log pi(a).

    The logits move by e_a - pi and dH/dz_b = -pi_b (log pi_b + H), so the change is
    C - f_a with f_a = pi_a (log pi_a + H) and C = sum_b pi_b f_b = Cov(pi, log pi) >= 0.
    Tokens with f_a > C, all of them above e^-H, lower the entropy when rewarded; all rarer ones
    raise it. Punishing (scale < 0) has the opposite sign.

    Reference: acrl Sec. 4.3, Fig. 7.
    Deviation: the paper says high and low probability; the dividing line f_a = C is ours, and exact.
    """
    logs = np.where(probs > 0, safe_log(probs), 0.0)
    entropy = -(probs * logs).sum(-1, keepdims=True)
    f = probs * (logs + entropy)
    return scale * ((probs * f).sum(-1, keepdims=True) - f)


def entropy_after_step(probs: Float[np.ndarray, " V"], token: int, eta: float) -> float:
    """Return the exact entropy change of one row `[V]` after logits + eta (e_token - probs).

    Reference: acrl Sec. 4.3.
    """
    logits = safe_log(probs) + eta * (np.arange(len(probs)) == token) - eta * probs
    moved = np.exp(logits - logits.max())
    moved /= moved.sum()
    return float(-(moved * safe_log(moved)).sum() + (probs * safe_log(probs)).sum())


def entropy_by_quadrant(
    train: Float[np.ndarray, "K V"], infer: Float[np.ndarray, "K V"], level: float, gamma: float, clip: float
) -> dict[str, dict[str, float]]:
    """Return expected entropy change per unit step by quadrant, sampled from infer, without and with ACRL.

    Advantages are +1 and -1 with equal chances, whatever the token; `[K, V]` tables, mean over rows.

    Reference: acrl Fig. 6, 7, Sec. 4.3.
    """
    side = np.where(train > infer, 1, -1)
    result = {}
    for (sign, where), name in QUADRANTS.items():
        weights = acrl_weight(np.float64(sign), train, infer, level, gamma, clip)
        change = np.where(side == where, infer * entropy_change(train, 0.5 * sign), 0.0)
        result[name] = {
            "plain": float(change.sum()) / len(train),
            "acrl": float((change * weights).sum()) / len(train),
        }
    return result
