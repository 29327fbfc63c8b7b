"""The protocol of inference engines, emulated or real: sample, score, sync weights, describe."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from simlab.core.json_value import Json
from simlab.core.ranges import COUNT, POSITIVE, SEED, Range
from simlab.engines import ENGINES
from simlab.models.config import TransformerConfig
from simlab.models.parameters import Params
from simlab.models.transformer import response_logps
from simlab.rollout.trajectory import response_mask

TOKEN_ID = Range(low=0)


class EngineError(RuntimeError):
    """An engine is not available, died, timed out, or returned an invalid answer."""


@dataclass(frozen=True, kw_only=True)
class SamplingRequest:
    """Sample up to `max_tokens` tokens at `temperature` (0: greedy).

    A response ends with `eos_token_id`; later positions hold `pad_token_id`.
    """

    max_tokens: int
    eos_token_id: int
    pad_token_id: int
    temperature: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: A number is outside its range; the message names the field and the range.
        """
        ranges = {"max_tokens": COUNT, "eos_token_id": TOKEN_ID, "pad_token_id": TOKEN_ID, "seed": SEED}
        for name, allowed in ranges.items():
            allowed.check(getattr(self, name), name)
        check_temperature(self.temperature)


def check_temperature(value: float) -> None:
    """Check that engines can sample at the temperature `value`.

    Raises:
        ValueError: The value is neither 0 nor a positive normal float32.
    """
    if value != 0 and not POSITIVE.low <= value <= POSITIVE.high:
        raise ValueError(f"temperature must be 0 (greedy) or positive and finite in float32, got {value}.")


@dataclass(frozen=True)
class Samples:
    """Responses [N, T], their mask, and the log-probability of each token as the engine reports it.

    `logps` are those of the raw logits, 0 where masked. `routed_experts` are the experts of each of the
    S = P + T - 1 tokens that were read; None for a dense model or an engine that does not report them.
    """

    responses: Int[np.ndarray, "N T"]
    mask: Bool[np.ndarray, "N T"]
    logps: Float[np.ndarray, "N T"]
    routed_experts: Int[np.ndarray, "N S L k"] | None


@dataclass(frozen=True)
class EngineScores:
    """Log-probabilities [B, T] of given responses, and `routed_experts` as in `Samples`."""

    logps: Float[np.ndarray, "B T"]
    routed_experts: Int[np.ndarray, "B S L k"] | None


class RealEngine(Protocol):
    """Prompts [N, P] and responses [N, T] are int32; every method raises `EngineError`."""

    def describe(self) -> Mapping[str, Json]:
        """Return name, versions and number formats, for a manifest."""
        ...

    def sync_weights(self, config: TransformerConfig, params: Params) -> float:
        """Load weights; return the result of the parity check against `params`, nats."""
        ...

    def generate(self, prompts: Int[np.ndarray, "N P"], sampling: SamplingRequest) -> Samples:
        """Sample one response to each prompt."""
        ...

    def score(self, prompts: Int[np.ndarray, "N P"], responses: Int[np.ndarray, "N T"]) -> EngineScores:
        """Score responses in one pass over all tokens."""
        ...


def build_samples(
    engine: str,
    tokens: ArrayLike,
    logps: ArrayLike,
    experts: Int[np.ndarray, "N S L k"] | None,
    sampling: SamplingRequest,
    count: int,
) -> Samples:
    """Return the answer of `engine` to `count` prompts, checked, and masked after the end token."""
    tokens, logps = np.asarray(tokens, np.int32), np.asarray(logps)
    mask = np.asarray(response_mask(jax.numpy.asarray(tokens), sampling.eos_token_id))
    logps = np.where(mask, check_logps(engine, logps, (count, sampling.max_tokens), mask), np.float32(0))
    return Samples(np.where(mask, tokens, np.int32(sampling.pad_token_id)), mask, logps, experts)


def check_logps(
    engine: str, logps: ArrayLike, shape: tuple[int, ...], mask: np.ndarray | bool = True
) -> np.ndarray:
    """Return log-probabilities as float32.

    Raises:
        EngineError: The shape is wrong, or a log-probability where `mask` holds is not finite and <= 0.
    """
    logps = np.asarray(logps, np.float32)
    if logps.shape != shape:
        raise EngineError(f"{engine} must return log-probs of shape {shape}, got {logps.shape}.")
    invalid = ~(np.isfinite(logps) & (logps <= 1e-6)) & mask
    if invalid.any():
        first = [int(index[0]) for index in np.nonzero(invalid)]
        raise EngineError(
            f"{engine} returned {int(invalid.sum())} invalid log-probs of {invalid.size} "
            f"(first: {logps[tuple(first)]} at {first}). Log-probs must be finite and <= 0."
        )
    return logps


# Long enough to detect a corrupt matrix in any layer, short enough to be free compared with a rollout.
_CHECK_PROMPT, _CHECK_RESPONSE = 4, 12


def assert_parity(
    engine: RealEngine, name: str, config: TransformerConfig, params: Params, tolerance: float
) -> float:
    """Return the mean abs log-prob difference between `engine` and `params` on two random rows, nats.

    The reference is the float32 score. Rounding changes the difference by hundredths, a missing or misplaced
    weight by tenths or more.

    Raises:
        EngineError: The difference exceeds `tolerance`.
    """
    length = _CHECK_PROMPT + _CHECK_RESPONSE
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (2, length)).astype(np.int32)
    prompts, responses = tokens[:, :_CHECK_PROMPT], tokens[:, _CHECK_PROMPT:]
    expected = score_compiled(params, config, ENGINES["f32"], prompts, responses).logp
    difference = float(np.abs(engine.score(prompts, responses).logps - np.asarray(expected)).mean())
    if not difference <= tolerance:
        raise EngineError(
            f"weight sync to {name} failed: the mean log-prob difference must be at most {tolerance:g} nats, "
            f"got {difference:.3g}. The weights did not arrive as sent."
        )
    return difference


score_compiled = jax.jit(response_logps, static_argnums=1)
"""`response_logps`, compiled for the shapes of a model and of the tokens."""


def raise_without_weights(name: str) -> NoReturn:
    """Raise the error of an engine that has no weights."""
    raise EngineError(f"{name} has no weights. Call sync_weights first.")
