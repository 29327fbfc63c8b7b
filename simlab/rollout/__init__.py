"""Rollout: sampling of tokens, generation with a KV cache, and the trajectory record."""

from simlab.rollout.generate import generate
from simlab.rollout.sampling import GREEDY, SamplingParams, draw_token, processed_logits
from simlab.rollout.trajectory import Trajectory, response_mask

__all__ = [
    "GREEDY",
    "SamplingParams",
    "Trajectory",
    "draw_token",
    "generate",
    "processed_logits",
    "response_mask",
]
