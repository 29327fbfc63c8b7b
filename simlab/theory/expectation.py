"""Two policies on one space of sequences: exact distributions, expectations and gradients.

Everything here is numpy in float64. Gradients are taken in the logits of the training policy.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Real

from simlab.models.tabular import SequenceSpace, log_softmax, sum_of_scores, token_values


@dataclass(frozen=True)
class PolicyPair:
    """The training policy and the policy that samples, as tables of probabilities `[K, V]`.

    Rows sum to one: `infer` is the distribution that the engine samples from. An engine whose printed
    probabilities do not sum to one samples from another one; see `simlab.theory.engine_pairs`.

    Reference: hacking Eq. 5, 25.
    """

    space: SequenceSpace
    train: Float[np.ndarray, "K V"]
    infer: Float[np.ndarray, "K V"]

    def __post_init__(self) -> None:
        """Reject tables of the wrong shape or type, and rows that are not distributions."""
        for name in ("train", "infer"):
            rows = getattr(self, name)
            if rows.shape != self.space.table_shape or rows.dtype != np.float64:
                raise ValueError(
                    f"{name} must be float64 {self.space.table_shape}, got {rows.dtype} {rows.shape}"
                )
            if not np.allclose(rows.sum(1), 1, rtol=0, atol=1e-9):
                raise ValueError(f"rows of {name} must sum to one")

    @cached_property
    def logp_train(self) -> Float[np.ndarray, "S T"]:
        """log pi_train of the sampled tokens, `[S, T]`; 0 where masked."""
        return token_values(self.space, safe_log(self.train))

    @cached_property
    def logp_infer(self) -> Float[np.ndarray, "S T"]:
        """log pi_infer of the sampled tokens, `[S, T]`; 0 where masked."""
        return token_values(self.space, safe_log(self.infer))

    @cached_property
    def probs_train(self) -> Float[np.ndarray, " S"]:
        """Probability of each sequence under pi_train, `[S]`."""
        return np.exp(self.logp_train.sum(1))

    @cached_property
    def probs_infer(self) -> Float[np.ndarray, " S"]:
        """Probability of each sequence under pi_infer, `[S]`."""
        return np.exp(self.logp_infer.sum(1))

    @cached_property
    def log_rho(self) -> Float[np.ndarray, "S T"]:
        """Log of the IS ratio per token, `[S, T]`; 0 where masked or where both vanish."""
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(self.logp_train - self.logp_infer, nan=0.0, posinf=np.inf, neginf=-np.inf)

    @cached_property
    def rho_std(self) -> float:
        """The papers' mismatch: std of rho over the sampled tokens (each token of a step counts once)."""
        weights = self.probs_infer[:, None] * self.space.mask
        rho = np.exp(np.where(weights > 0, self.log_rho, 0.0))
        mean = (weights * rho).sum() / weights.sum()
        return float(np.sqrt((weights * (rho - mean) ** 2).sum() / weights.sum()))

    def gradient(self, weights: Float[np.ndarray, " S *T"]) -> Float[np.ndarray, "K V"]:
        """Return `sum_{s,t} weights[s,t] grad log pi_train`, `[K, V]`; `[S]` weights serve all tokens."""
        if weights.ndim == 1:
            weights = np.broadcast_to(weights[:, None], self.space.tokens.shape)
        return sum_of_scores(self.space, self.train, weights)


def safe_log(probs: Float[np.ndarray, "*S"]) -> Float[np.ndarray, "*S"]:
    """Return the natural log with -inf, and no warning, at zero."""
    with np.errstate(divide="ignore"):
        return np.log(probs)


def expect(probs: Float[np.ndarray, " S"], values: Real[np.ndarray, " S"]) -> float:
    """Return the mean of `values` `[S]` under `probs` `[S]`; values of probability zero do not count."""
    return float(np.sum(probs * np.where(probs > 0, values, 0.0)))


def softmax(logits: Float[np.ndarray, "*K V"]) -> Float[np.ndarray, "*K V"]:
    """Return rows of probabilities from rows of logits."""
    return np.exp(log_softmax(logits))


def random_logits(space: SequenceSpace, seed: int, std: float = 1.5) -> Float[np.ndarray, "K V"]:
    """Draw a table of N(0, std^2) logits; 1.5 as in the papers' softmax study."""
    return np.random.default_rng(seed).normal(scale=std, size=space.table_shape)


def noisy_pair(
    space: SequenceSpace, logits: Float[np.ndarray, "K V"], noise_std: float, seed: int = 0
) -> PolicyPair:
    """Return the pair whose engine adds N(0, noise_std^2), fixed per token and context, to the logits."""
    noise = np.random.default_rng([seed, 1]).normal(size=logits.shape)
    return PolicyPair(space, softmax(logits), softmax(logits + noise_std * noise))


def random_rewards(space: SequenceSpace, seed: int, success: float = 0.4) -> Float[np.ndarray, " S"]:
    """Draw 0/1 rewards `[S]`: 1 for a fraction `success` of the sequences, independent of the policy.

    At least one sequence succeeds and one fails.
    """
    count = len(space.tokens)
    rank = np.random.default_rng([seed, 2]).permutation(count)
    return (rank < np.clip(round(success * count), 1, count - 1)).astype(np.float64)


def relative(difference: Float[np.ndarray, "*S"] | float, scale: Float[np.ndarray, "*S"] | float) -> float:
    """Return the norm of `difference` over norm of `scale`."""
    return float(np.linalg.norm(difference) / np.linalg.norm(scale))
