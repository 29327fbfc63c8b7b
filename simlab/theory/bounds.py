"""The bounds of the gradient error, and how loose they are."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Real

from simlab.models.tabular import SequenceSpace, log_softmax, token_values
from simlab.theory.expectation import PolicyPair


@dataclass(frozen=True)
class Bound:
    """A measured quantity and the bound that the paper puts on it."""

    value: float
    bound: float

    @property
    def tightness(self) -> float:
        """value / bound: 1 is tight, above 1 the bound is broken."""
        return self.value / self.bound if self.bound > 0 else float(self.value > 0)


def drift(pair: PolicyPair) -> float:
    """Return Delta_max: the largest total variation distance of the next-token distributions over contexts.

    Reference: lr Asm. B.2.
    """
    return float(np.abs(pair.train - pair.infer).sum(1).max() / 2)


def score_bound(probs: Float[np.ndarray, "K V"]) -> float:
    """Return B: the largest norm of a token's score in the logits.

    Reference: lr Asm. B.3.
    """
    squares = (probs**2).sum(1, keepdims=True) + (1 - 2 * probs)
    return float(np.sqrt(squares.max()))


def gradient_error(pair: PolicyPair, rewards: Float[np.ndarray, " S"]) -> Bound:
    """Compare |E_infer[R grad log pi_train] - E_train[...]| with 2 B Delta_max T^2; R in [0, 1].

    Reference: lr Eq. 2, 3, 14, Thm. 3.1, B.1.
    Deviation: the proof passes through a reward per token; the bound follows directly: distributions of the
    sequences differ by at most 2 T Delta in L1 and a sequence's score is at most T B.
    """
    error = pair.gradient((pair.probs_infer - pair.probs_train) * rewards)
    horizon = pair.space.tokens.shape[1]
    bound = 2 * score_bound(pair.train) * drift(pair) * horizon**2
    return Bound(float(np.linalg.norm(error)), bound)


def gradient_error_of_proof(
    pair: PolicyPair, rewards: Float[np.ndarray, " S"], slopes: Float[np.ndarray, "K V"]
) -> Bound:
    """Return the error that the paper's proof bounds: its sampled gradient differentiates log pi_infer.

    `slopes` `[K, V]` say how fast the engine's logits follow the trainer's. B is taken over pi_train's
    scores, as the assumption says; the bound then fails where the engine's slopes differ from one.

    Reference: lr Thm. B.1.
    Deviation: Eq. 3, and every trainer, differentiates log pi_train: `gradient_error`.
    """
    engine = PolicyPair(pair.space, pair.infer, pair.infer)
    error = slopes * engine.gradient(pair.probs_infer * rewards) - pair.gradient(pair.probs_train * rewards)
    horizon = pair.space.tokens.shape[1]
    return Bound(float(np.linalg.norm(error)), 2 * score_bound(pair.train) * drift(pair) * horizon**2)


def gradient_error_linear(pair: PolicyPair, rewards: Float[np.ndarray, " S"]) -> Bound:
    """Compare the gradient error with sqrt(T f) sqrt((1 + x)^T - 1), about T sqrt(f x): linear in T.

    Write the error as E_train[(w - 1) R s], w the IS ratio. By Cauchy-Schwarz, in any direction
    u it is at most sqrt(E (w - 1)^2) sqrt(E <u, s>^2). Scores are martingale differences, so the second
    factor is at most sqrt(T f), f the largest eigenvalue of a context's Fisher matrix (at most 1/2); the
    first is at most sqrt((1 + x)^T - 1), x the largest chi2(infer, train) of a context.

    Reference: lr Thm. 3.1.
    Deviation: a sharper bound of ours, under chi2 in place of total variation.
    """
    error = pair.gradient((pair.probs_infer - pair.probs_train) * rewards)
    horizon = pair.space.tokens.shape[1]
    chi2 = float(((pair.infer - pair.train) ** 2 / pair.train).sum(1).max())
    fisher = max(float(np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[-1]) for p in pair.train)
    bound = np.sqrt(horizon * fisher) * np.sqrt(np.expm1(horizon * np.log1p(chi2)))
    return Bound(float(np.linalg.norm(error)), float(bound))


def worst_rewards(pair: PolicyPair, starts: int = 8, rounds: int = 8) -> Float[np.ndarray, " S"]:
    """Find 0/1 rewards `[S]` of large gradient error: alternate between direction and rewards.

    Each round can only increase the error; the best of several starts is a local maximum.
    """
    difference = pair.probs_infer - pair.probs_train
    rng = np.random.default_rng(0)
    best, largest = np.ones(len(difference)), 0.0
    for direction in rng.normal(size=(starts, *pair.space.table_shape)):
        for _ in range(rounds):
            # <u, score of a sequence> for every sequence, by reading u as a table of token values.
            centered = direction - (pair.train * direction).sum(1, keepdims=True)
            rewards = (difference * token_values(pair.space, centered).sum(1) > 0).astype(np.float64)
            direction = pair.gradient(difference * rewards)
            if np.linalg.norm(direction) > largest:
                best, largest = rewards, float(np.linalg.norm(direction))
    return best


def occupancy_drift(pair: PolicyPair) -> list[Bound]:
    """Compare |d_train,t - d_infer,t|_1 over prefixes of length t with 2 t Delta_max, t = 0..T-1.

    Reference: lr Eq. 15, Lem. B.5.
    Deviation: a state here is the complete prefix, the finest there is, so the drift is the largest.
    """
    space, largest = pair.space, drift(pair)
    bounds = []
    for t in range(space.tokens.shape[1]):
        powers = space.vocabulary ** np.arange(t, dtype=np.int64)[::-1]
        code = (space.tokens[:, :t] * space.mask[:, :t]).astype(np.int64) @ powers
        code = code * (t + 1) + space.mask[:, :t].sum(1)  # an ended sequence stays apart
        _, state = np.unique(code, return_inverse=True)
        difference = np.bincount(state, pair.probs_train - pair.probs_infer)
        bounds.append(Bound(float(np.abs(difference).sum()), 2 * t * largest))
    return bounds


def log_slope(x: Real[np.ndarray, " N"], y: Float[np.ndarray, " N"]) -> float:
    """Return the slope of log abs(y) in log x, by least squares over the nonzero y, at least two."""
    used = y != 0
    return float(np.polyfit(np.log(x[used]), np.log(np.abs(y[used])), 1)[0])


@dataclass(frozen=True)
class Progress:
    """Expected change of J in one stochastic step, and the three terms of its lower bound."""

    change: float
    true_progress: float
    bias_effect: float
    noise_penalty: float

    @property
    def lower_bound(self) -> float:
        """Term A + term B - term C."""
        return self.true_progress + self.bias_effect - self.noise_penalty


def average_progress(
    pair: PolicyPair, logits: Float[np.ndarray, "K V"], rewards: Float[np.ndarray, " S"], eta: float
) -> Progress:
    """Average one REINFORCE step from a single sequence of pi_infer, exactly over all sequences.

    L is rigorous for softmax tables and R in [0, 1]: the Hessian of J is E[R (s s' + ds)] with a
    sequence's score |s|^2 <= 2 T^2 and |ds| <= T / 2, so L = 2 T^2 + T / 2.

    Reference: lr Eq. 9-13.
    """
    space = pair.space
    horizon = space.tokens.shape[1]
    smooth = 2 * horizon**2 + horizon / 2
    true = pair.gradient(pair.probs_train * rewards)
    steps = np.stack([pair.gradient(row) for row in np.diag(rewards)])
    mean = np.tensordot(pair.probs_infer, steps, 1)
    variance = float(pair.probs_infer @ (steps**2).sum((1, 2)) - (mean**2).sum())
    bias = mean - true
    after = [_value(space, logits + eta * step, rewards) for step in steps]
    return Progress(
        change=float(pair.probs_infer @ np.asarray(after)) - _value(space, logits, rewards),
        true_progress=eta * (1 - smooth * eta / 2) * float((true**2).sum()),
        bias_effect=eta * (1 - smooth * eta) * float((true * bias).sum()),
        noise_penalty=smooth * eta**2 / 2 * (variance + float((bias**2).sum())),
    )


def _value(space: SequenceSpace, logits: np.ndarray, rewards: np.ndarray) -> float:
    return float(np.exp(token_values(space, log_softmax(logits)).sum(1)) @ rewards)
