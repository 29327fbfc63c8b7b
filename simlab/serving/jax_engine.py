"""Simlab's own forward pass under any engine record, with the protocol of real engines."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from simlab.core.json_value import Json
from simlab.core.manifest import device, versions
from simlab.engines import Engine, find_engine
from simlab.models.config import TransformerConfig
from simlab.models.kv_cache import empty_cache
from simlab.models.parameters import Params
from simlab.models.transformer import extend, prepare
from simlab.rollout.generate import generate
from simlab.rollout.sampling import GREEDY, SamplingParams
from simlab.serving.protocol import (
    EngineScores,
    Samples,
    SamplingRequest,
    assert_parity,
    build_samples,
    check_logps,
    raise_without_weights,
    score_compiled,
)


class JaxEngine:
    """An emulated engine, by name or as a record; `parity` is the tolerance of its sync, nats."""

    def __init__(self, engine: Engine | str, *, parity: float = 0.3):
        """Store the engine; `sync_weights` provides the weights."""
        self.engine, self.parity = find_engine(engine), parity
        self.name = engine if isinstance(engine, str) else "custom"
        self._weights: tuple[TransformerConfig, Params] | None = None

    def describe(self) -> Mapping[str, Json]:
        """Return name, versions and device."""
        return {"engine": f"simlab {self.name}", "versions": versions(), "device": device()}

    def sync_weights(self, config: TransformerConfig, params: Params) -> float:
        """Store `params`; return the parity check, the distance of the engine from float32."""
        self._weights = config, params
        return assert_parity(self, f"simlab {self.name}", config, params, self.parity)

    def generate(self, prompts: Int[np.ndarray, "N P"], sampling: SamplingRequest) -> Samples:
        """Sample token by token with a KV cache."""
        config, params = self._get_weights()
        sampling_params = SamplingParams(temperature=sampling.temperature) if sampling.temperature else GREEDY
        key = jax.random.key(sampling.seed)
        trajectory = _generate(
            params, config, self.engine, sampling_params, key, jnp.asarray(prompts), sampling
        )
        experts = None if trajectory.routed_experts is None else np.asarray(trajectory.routed_experts)
        responses, logps = trajectory.responses, trajectory.logp_infer
        return build_samples(self.name, responses, logps, experts, sampling, len(prompts))

    def score(self, prompts: Int[np.ndarray, "N P"], responses: Int[np.ndarray, "N T"]) -> EngineScores:
        """Score in one pass."""
        config, params = self._get_weights()
        scores = score_compiled(params, config, self.engine, jnp.asarray(prompts), jnp.asarray(responses))
        experts = None if scores.routed_experts is None else np.asarray(scores.routed_experts)
        return EngineScores(check_logps(self.name, scores.logp, responses.shape), experts)

    def hidden_states(
        self, tokens: Int[np.ndarray, "B S"], depths: Sequence[int]
    ) -> Float[np.ndarray, "depths B S D"]:
        """Return the normed hidden states [depths, B, S, D] of `tokens` [B, S] after `depths` layers.

        Compiles the model once per depth, truncated to that depth.
        """
        config, params = self._get_weights()
        states = []
        for depth in depths:
            first = {**params, "layers": params["layers"][:depth]}
            shape = replace(config, num_hidden_layers=depth)
            states.append(_hidden(first, shape, self.engine, jnp.asarray(tokens)))
        return np.stack(states)

    def _get_weights(self) -> tuple[TransformerConfig, Params]:
        return self._weights or raise_without_weights(f"simlab {self.name}")


@partial(jax.jit, static_argnums=1)
def _hidden(params, config, engine, tokens):
    caches = empty_cache(config, *tokens.shape)
    return extend(prepare(params, config, engine), config, engine, caches, tokens, 0)[0]


@partial(jax.jit, static_argnums=(1, 6))
def _generate(params, config, engine, sampling_params, key, prompts, sampling: SamplingRequest):
    return generate(
        params,
        config,
        engine,
        sampling_params,
        key,
        prompts,
        lambda tokens: jnp.zeros(tokens.shape[0]),
        group_size=1,
        length=sampling.max_tokens,
        end=sampling.eos_token_id,
        pad=sampling.pad_token_id,
    )
