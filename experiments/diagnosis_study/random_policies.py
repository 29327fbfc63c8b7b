"""Pools of random policies with hand-made noise: they widen the fit beyond policies trained in simlab.

People try `simlab diagnose` on logs that no model wrote: logits of a random head, a Gaussian for rounding,
and a fault by formula. These pools have the names of `forward_passes.Pool`, so that every fault applies.
"""

from dataclasses import dataclass

import numpy as np

from experiments.diagnosis_study.forward_passes import (
    DROPOUT,
    GAPS,
    INFER_ENGINES,
    ROPE_FACTORS,
    TRAIN_ENGINES,
    UPDATES,
    Pass,
    Pool,
)
from experiments.diagnosis_study.log_assembly import LAB_VOCABULARY, log_uniform
from simlab.diagnosis.log import index_tokens
from simlab.tasks import EOS_TOKEN_ID

CONTEXTS, WIDTH = 2500, 48
SHARPNESS = (0.8, 7.0)
"""Standard deviation of the logits: flat to as peaked as a trained policy."""
NOISE = (0.004, 0.35)
"""Standard deviation of an engine's noise on the logits, nats."""
DIRECT = 0.35
"""Fraction of pools whose noise is added to the log-probs instead of the logits."""
DIRECT_NOISE = (0.003, 0.3)
WEIGHTS = (
    "layer old", "layer corrupt", "norms old", "layers swapped", "embedding rows", "attention corrupt",
    "fresh layer",
)  # fmt: skip
CONTEXT_FAULTS = ("prompt start", "prompt end", "other prompt", "no first token", "other token")


def make_random_pool(seed: int, infer_engines: tuple[str, ...] = INFER_ENGINES) -> Pool:
    """Return a pool of random contexts [N] under a random head, with noise for every engine."""
    rng = np.random.default_rng([seed, 30])
    policy = _draw_policy(rng)
    is_direct = bool(rng.random() < DIRECT)
    engines = {"f32": policy.score(np.zeros_like(policy.logits))}
    for name in dict.fromkeys((*TRAIN_ENGINES, *infer_engines)):
        size = 1e-3 if is_direct or name == "bf16" else log_uniform(rng, NOISE)
        noise = _draw_noise(rng, policy.hidden, policy.head, size)
        engines.setdefault(name, policy.score(noise, 0.3 * size))
    lengths = policy.lengths
    return Pool(
        name="random",
        engines=engines,
        faults=_draw_faults(policy),
        sequence=np.repeat(np.arange(len(lengths)), lengths),
        index=index_tokens(lengths),
        experts=None,
        flipped=None,
        direct=log_uniform(rng, DIRECT_NOISE) if is_direct else 0.0,
    )


@dataclass(frozen=True)
class _RandomPolicy:
    """Hidden states [N, D] of random contexts, a head [D, V] with a bias [N, V], and response lengths."""

    rng: np.random.Generator
    hidden: np.ndarray
    head: np.ndarray
    bias: np.ndarray
    lengths: np.ndarray
    logits: np.ndarray

    def score(self, change: np.ndarray, hidden_noise: float = 0.0) -> Pass:
        """Return a forward pass whose logits differ by `change`, with noise on the hidden states."""
        noise = hidden_noise * self.rng.normal(size=self.hidden.shape) if hidden_noise else 0.0
        return Pass((self.logits + change).astype(np.float32), (self.hidden + noise).astype(np.float32))

    def score_with_dropout(self, rate: float) -> Pass:
        """Return a forward pass with dropout on the hidden states."""
        kept = self.hidden * ((self.rng.random(self.hidden.shape) >= rate) / (1 - rate))
        return Pass((kept @ self.head + self.bias).astype(np.float32), kept.astype(np.float32))

    def change_by_context(self) -> np.ndarray:
        """Return a change of the logits that is a function of the context."""
        inner = np.tanh(self.hidden @ self.rng.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH))
        return 2 * inner @ self.rng.normal(size=self.head.shape) / np.sqrt(WIDTH)

    def change_at_random(self) -> np.ndarray:
        """Return a change of the logits that is independent at each context."""
        return self.rng.normal(size=self.logits.shape)


def _draw_policy(rng: np.random.Generator) -> _RandomPolicy:
    hidden = rng.normal(size=(CONTEXTS, WIDTH)) * np.exp(rng.normal(0, 0.3, (CONTEXTS, 1)))
    head = rng.normal(size=(WIDTH, LAB_VOCABULARY)) / np.sqrt(WIDTH) * log_uniform(rng, SHARPNESS)
    bias = np.zeros((CONTEXTS, LAB_VOCABULARY))
    sure = rng.random(CONTEXTS) < rng.uniform(0, 0.8)
    bias[sure, rng.integers(2, LAB_VOCABULARY, int(sure.sum()))] = rng.uniform(4, 12)
    lengths = (rng.integers(40, 100) * rng.uniform(0.7, 1.0, CONTEXTS)).astype(int)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), CONTEXTS))]
    lengths = np.append(lengths, CONTEXTS - lengths.sum())
    bias[:, EOS_TOKEN_ID] -= 8
    bias[np.cumsum(lengths) - 1, EOS_TOKEN_ID] += 8 + rng.uniform(0, 8)
    return _RandomPolicy(rng, hidden, head, bias, lengths, hidden @ head + bias)


def _draw_faults(policy: _RandomPolicy) -> dict[str, Pass]:
    """Return a forward pass for each fault.

    Weights that differ change a context always in the same way. Positions, prompts and other tokens do so
    too, or independently at each context: as in a formula that multiplies a Gaussian.
    """
    rng = policy.rng
    change = policy.change_at_random if rng.random() < 0.5 else policy.change_by_context
    faults, drift = {}, np.zeros_like(policy.logits)
    for age in range(1, UPDATES + 1):
        drift = drift + 0.5 * policy.change_by_context()
        faults[f"old {age}"] = policy.score(drift, 0.1 * age)
    for name in WEIGHTS:
        late = rng.random((CONTEXTS, 1)) < (0.3 if name == "embedding rows" else 1.0)
        faults[name] = policy.score(policy.change_by_context() * late, 0.3)
    names = [*(f"gap {gap}" for gap in GAPS), *(f"rope {factor}" for factor in ROPE_FACTORS), *CONTEXT_FAULTS]
    faults |= {name: policy.score(1.5 * change(), 0.3) for name in names}
    for name, (rate, _) in DROPOUT.items():
        if rng.random() < 0.5:
            faults[name] = policy.score_with_dropout(rate)
        else:
            size = rng.uniform(0.3, 1.0)
            faults[name] = policy.score(size * policy.change_at_random(), 0.3 * size)
    return faults


def _draw_noise(rng: np.random.Generator, hidden: np.ndarray, head: np.ndarray, size: float) -> np.ndarray:
    """Return noise on the logits [N, V] of about `size` nats: of one of five kinds."""
    shape = (len(hidden), head.shape[1])
    kind = rng.integers(5)
    if kind == 0:
        return size * rng.normal(size=shape)
    if kind == 1:
        return size * rng.standard_t(4, shape) / np.sqrt(2)
    if kind == 2:
        # Uneven over the contexts, as rounding is, and over the ids.
        over_ids = np.exp(rng.normal(0, 0.4, shape[1]))
        return size * rng.normal(size=shape) * np.exp(rng.normal(0, 0.5, (shape[0], 1))) * over_ids
    if kind == 3:
        # Each weight of a 4- or 8-bit head has its own rounding error, the same at every token.
        step = np.abs(head).max(0) / rng.choice([7, 127])
        error = np.round(head / step) * step - head
        rounded = hidden @ error
        return size * (rounded / max(rounded.std(), 1e-9) + 0.3 * rng.normal(size=shape))
    # A fixed function of the context: layers of rounded weights.
    inner = np.tanh(hidden @ rng.normal(size=(hidden.shape[1], 64)))
    return size * (0.9 * inner @ rng.normal(size=(64, shape[1])) / 6 + 0.4 * rng.normal(size=shape))
