"""What the lab asks of an engine, its own or another's: sample, score, take new weights, say what it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol

import jax
import numpy as np
from numpy.typing import ArrayLike

from simlab.core.manifest import Json
from simlab.engines import ENGINES
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.models.transformer import response_logps
from simlab.rollout.trajectory import response_mask


class EngineError(RuntimeError):
    """An engine that is not there, died, took too long, or answered nonsense."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample: up to `length` tokens at `temperature`, 0 being greedy, ended by `end`, then `pad`."""

    length: int
    end: int
    pad: int
    temperature: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Sampled:
    """Responses [N, T], their mask, and the log-probability of each token as the engine reports it.

    The log-probabilities are those of the raw logits, 0 where masked. `experts` [N, P + T - 1, L, k] are
    those that read each token, None for a dense model or an engine that does not tell.
    """

    responses: np.ndarray
    mask: np.ndarray
    logps: np.ndarray
    experts: np.ndarray | None


@dataclass(frozen=True)
class Scored:
    """Log-probabilities [B, T] of given responses, and experts as in `Sampled`."""

    logps: np.ndarray
    experts: np.ndarray | None


class RealEngine(Protocol):
    """Prompts [N, P] and responses [N, T] are int32; every method raises `EngineError`."""

    def describe(self) -> Mapping[str, Json]:
        """Return name, versions and number formats, for a manifest."""
        ...

    def sync_weights(self, config: TransformerConfig, params: Params) -> float:
        """Hand over weights and return how far the engine's probe is from that of `params`, in nats."""
        ...

    def generate(self, prompts: np.ndarray, sampling: Sampling) -> Sampled:
        """Sample one response to each prompt."""
        ...

    def score(self, prompts: np.ndarray, responses: np.ndarray) -> Scored:
        """Score responses in one pass over all tokens."""
        ...


def sampled(
    engine: str,
    tokens: ArrayLike,
    logps: ArrayLike,
    experts: np.ndarray | None,
    sampling: Sampling,
    count: int,
) -> Sampled:
    """Return an engine's answer to `count` prompts, checked, padded and masked behind the end."""
    tokens, logps = np.asarray(tokens, np.int32), np.asarray(logps)
    mask = np.asarray(response_mask(jax.numpy.asarray(tokens), sampling.end))
    logps = np.where(mask, checked_logps(engine, logps, (count, sampling.length), mask), np.float32(0))
    return Sampled(np.where(mask, tokens, np.int32(sampling.pad)), mask, logps, experts)


def checked_logps(
    engine: str, logps: ArrayLike, shape: tuple[int, ...], mask: np.ndarray | bool = True
) -> np.ndarray:
    """Return log-probabilities as float32, or raise `EngineError` saying what is wrong with them."""
    logps = np.asarray(logps, np.float32)
    if logps.shape != shape:
        raise EngineError(f"{engine} returned log-probs of shape {logps.shape}, expected {shape}")
    bad = ~(np.isfinite(logps) & (logps <= 1e-6)) & mask
    if bad.any():
        where = tuple(int(index[0]) for index in np.nonzero(bad))
        raise EngineError(
            f"{engine} returned {int(bad.sum())} of {bad.size} log-probs that are none, "
            f"the first {logps[where]} at {where}"
        )
    return logps


# Long enough that a broken matrix of any layer shows, short enough to cost nothing beside a rollout.
_PROBE_PROMPT, _PROBE_RESPONSE = 4, 12


def assert_parity(
    engine: RealEngine, name: str, config: TransformerConfig, params: Params, allowed: float
) -> float:
    """Return the mean |log-prob difference| between `engine` and `params` on a probe, in nats.

    The probe is two rows of tokens drawn from the vocabulary, scored by the lab in float32. Rounding moves it
    by hundredths; a weight that arrived in the wrong place or not at all by tenths or more.
    Raises `EngineError` naming the sync when it is above `allowed`.
    """
    length = _PROBE_PROMPT + _PROBE_RESPONSE
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (2, length)).astype(np.int32)
    prompts, responses = tokens[:, :_PROBE_PROMPT], tokens[:, _PROBE_PROMPT:]
    expected = _reference(params, config, ENGINES["f32"], prompts, responses).logp
    apart = float(np.abs(engine.score(prompts, responses).logps - np.asarray(expected)).mean())
    if not apart <= allowed:
        raise EngineError(
            f"weight sync to {name} failed: log-probs of the probe are {apart:.3g} nats off on average, "
            f"allowed {allowed:g}; the weights did not arrive as they were sent"
        )
    return apart


_reference = jax.jit(response_logps, static_argnums=1)


def refuse_without_weights(name: str) -> NoReturn:
    """Raise the error of an engine that was asked before its first weights."""
    raise EngineError(f"{name} has no weights yet; call sync_weights first")
