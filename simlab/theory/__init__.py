"""Exact statements of the papers on policies small enough to enumerate, in float64."""

from simlab.theory.expectation import PolicyPair, noisy_pair, random_logits

__all__ = ["PolicyPair", "noisy_pair", "random_logits"]
