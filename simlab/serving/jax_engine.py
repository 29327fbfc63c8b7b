"""The lab's own forward pass, under any engine record, behind the protocol of real engines."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from simlab.core.manifest import Json, device, versions
from simlab.engines import Engine, find_engine
from simlab.models.config import TransformerConfig
from simlab.models.kv_cache import empty_cache
from simlab.models.parameters import Params
from simlab.models.transformer import extend, prepare, response_logps
from simlab.rollout.generate import generate
from simlab.rollout.sampler import GREEDY, Sampler
from simlab.serving.protocol import (
    Sampled,
    Sampling,
    Scored,
    assert_parity,
    checked_logps,
    refuse_without_weights,
    sampled,
)


class JaxEngine:
    """An emulated engine, by name or as a record; `parity` is what its sync may be off, in nats."""

    def __init__(self, engine: Engine | str, *, parity: float = 0.3):
        """Hold the engine; weights come with `sync_weights`."""
        self.engine, self.parity = find_engine(engine), parity
        self.name = engine if isinstance(engine, str) else "custom"
        self._weights: tuple[TransformerConfig, Params] | None = None

    def describe(self) -> Mapping[str, Json]:
        """Return name, versions and device."""
        return {"engine": f"simlab {self.name}", "versions": versions(), "device": device()}

    def sync_weights(self, config: TransformerConfig, params: Params) -> float:
        """Take over `params`; the distance on the probe is that of the engine from float32."""
        self._weights = config, params
        return assert_parity(self, f"simlab {self.name}", config, params, self.parity)

    def generate(self, prompts: np.ndarray, sampling: Sampling) -> Sampled:
        """Sample token by token from a cache."""
        config, params = self._held()
        sampler = Sampler(temperature=sampling.temperature) if sampling.temperature else GREEDY
        key = jax.random.key(sampling.seed)
        found = _generate(params, config, self.engine, sampler, key, jnp.asarray(prompts), sampling)
        experts = None if found.routed_experts is None else np.asarray(found.routed_experts)
        return sampled(self.name, found.responses, found.logp_infer, experts, sampling, len(prompts))

    def score(self, prompts: np.ndarray, responses: np.ndarray) -> Scored:
        """Score in one pass."""
        config, params = self._held()
        found = _score(params, config, self.engine, jnp.asarray(prompts), jnp.asarray(responses))
        experts = None if found.routed_experts is None else np.asarray(found.routed_experts)
        return Scored(checked_logps(self.name, found.logp, responses.shape), experts)

    def hidden_states(self, tokens: np.ndarray, depths: Sequence[int]) -> np.ndarray:
        """Return what the head would read behind each of `depths` layers, [depths, B, S, D].

        `tokens` is [B, S]. Each depth is a program of its own: the model cut there.
        """
        config, params = self._held()
        return np.stack(
            [
                _hidden(
                    {**params, "layers": params["layers"][:depth]},
                    replace(config, num_hidden_layers=depth),
                    self.engine,
                    jnp.asarray(tokens),
                )
                for depth in depths
            ]
        )

    def _held(self) -> tuple[TransformerConfig, Params]:
        return self._weights or refuse_without_weights(f"simlab {self.name}")


_score = jax.jit(response_logps, static_argnums=1)


@partial(jax.jit, static_argnums=1)
def _hidden(params, config, engine, tokens):
    caches = empty_cache(config, *tokens.shape)
    return extend(prepare(params, config, engine), config, engine, caches, tokens, 0)[0]


@partial(jax.jit, static_argnums=(1, 6))
def _generate(params, config, engine, sampler, key, prompts, sampling: Sampling):
    return generate(
        params,
        config,
        engine,
        sampler,
        key,
        prompts,
        lambda tokens: jnp.zeros(tokens.shape[0]),
        group_size=1,
        length=sampling.length,
        end=sampling.end,
        pad=sampling.pad,
    )
