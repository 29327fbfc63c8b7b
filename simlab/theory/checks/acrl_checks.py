"""acrl: A11, A15."""

import numpy as np

from simlab.theory.acrl import entropy_after_step, entropy_by_quadrant, entropy_change, sign_cases
from simlab.theory.bounds import log_slope
from simlab.theory.expectation import softmax
from simlab.theory.residual import Residual


def eight_cases() -> Residual:
    """Check that weights exceed one exactly where Fig. 3 and 5 have them."""
    rows = sign_cases()
    wrong = [row["quadrant"] for row in rows if row["enhanced"] != row["expected"]]
    weights = ", ".join(
        f"{row['quadrant']}{'>' if row['level'] > 1 else '<'} {row['weight']:.2f}" for row in rows
    )
    return Residual(len(wrong) / len(rows), not wrong, f"quadrant, Y > X or < X, weight: {weights}")


def entropy_of_update() -> Residual:
    """Compare the first-order entropy change of every token with real steps; check the dividing line."""
    probs = softmax(1.5 * np.random.default_rng(0).normal(size=(1, 12)))
    change = entropy_change(probs)[0]
    etas = np.geomspace(1e-4, 1e-2, 5)
    orders = []
    for token in range(12):
        remainders = [entropy_after_step(probs[0], token, eta) - eta * change[token] for eta in etas]
        orders.append(log_slope(etas, np.asarray(remainders)))
    raising = probs[0][change > 0]
    lowering = probs[0][change < 0]
    residual = float(np.abs(np.asarray(orders) - 2).max())
    return Residual(
        residual,
        residual < 0.05 and raising.max() < lowering.min(),
        f"order of the remainder 2 within {residual:.3f}; rewarding tokens up to p = {raising.max():.3f} "
        f"raises entropy, from {lowering.min():.3f} on it lowers it",
    )


def entropy_quadrants() -> Residual:
    """Check the expected entropy change by quadrant, plain and with ACRL at Y = 1.5 X."""
    rng = np.random.default_rng(1)
    logits = 1.5 * rng.normal(size=(4000, 32))
    train, infer = softmax(logits), softmax(logits + 0.3 * rng.normal(size=logits.shape))
    changes = entropy_by_quadrant(train, infer, 1.5, 0.65, 3.0)
    expected = {"I": 1, "II": -1, "III": 1, "IV": -1}
    wrong = [name for name, sign in expected.items() if np.sign(changes[name]["plain"]) != sign]
    plain, acrl = (sum(row[kind] for row in changes.values()) for kind in ("plain", "acrl"))
    listed = ", ".join(f"{name} {row['plain']:+.4f} -> {row['acrl']:+.4f}" for name, row in changes.items())
    return Residual(
        len(wrong) / 4,
        not wrong and acrl > plain,
        f"plain -> ACRL: {listed}; sum {plain:+.4f} -> {acrl:+.4f}; wrong sign: {', '.join(wrong) or 'none'}",
    )
