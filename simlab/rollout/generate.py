"""Sampling complete responses: one prefill per prompt, then one scan over tokens with a KV cache."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from simlab.core.arrays import AnyArray
from simlab.core.streams import draw_array, stream
from simlab.engines import Engine, rounds_stochastically, softmax
from simlab.models.config import TransformerConfig
from simlab.models.kv_cache import empty_cache, repeat_caches
from simlab.models.parameters import Params
from simlab.models.transformer import Weights, extend, prepare, read_logits, stack_layers, token_logps
from simlab.rollout.noise import context_digest, extend_digest, perturb_logits, perturb_weights
from simlab.rollout.sampling import SamplingParams, draw_token, processed_logits
from simlab.rollout.trajectory import Trajectory, response_mask


def generate(
    params: Params,
    config: TransformerConfig,
    engine: Engine,
    sampling: SamplingParams,
    key: Array,
    prompts: Int[AnyArray, "N P"],
    check: Callable[[Int[Array, "B S"]], Float[Array, " B"]],
    *,
    group_size: int,
    length: int,
    end: int,
    pad: int,
    vocabulary: bool = False,
) -> Trajectory:
    """Sample responses to prompts under an engine and reward them.

    Weights are quantized once; each prompt is read once.

    Args:
        params: of the model, float32.
        config: its shapes.
        engine: the inference engine.
        sampling: temperature, filters and injected noise.
        key: of tokens, noise and stochastic rounding, in named streams.
        prompts: int32 [N, P].
        check: maps tokens [N x group_size, P + T] to rewards [N x group_size].
        group_size: responses per prompt.
        length: T, the maximum number of tokens of a response.
        end: token that ends a response.
        pad: token behind the end; its log-probability is zero.
        vocabulary: whether the trajectory has the log-probabilities of all tokens, too.

    Returns:
        The trajectory of N x group_size responses.

    Reference: vLLM LLM.generate with `n` and `logprobs`.
    """
    count, prompt_length = prompts.shape
    caches = empty_cache(config, count, prompt_length + length)
    params = perturb_weights(params, sampling.noise, stream(key, "weight noise"))
    weights_key = stream(key, "weights") if rounds_stochastically(engine) else None
    weights, caches = stack_layers(prepare(params, config, engine, weights_key), caches, config)
    hidden, caches, read, _ = extend(weights, config, engine, caches, prompts, 0)
    hidden, caches = jnp.repeat(hidden[:, -1:], group_size, axis=0), repeat_caches(caches, count, group_size)
    uniforms = draw_array(jax.random.uniform, stream(key, "tokens"), (length, count * group_size))
    decoder = _Decoder(weights, config, engine, sampling, key, prompt_length, end, pad, vocabulary)

    digest = context_digest(jnp.repeat(prompts, group_size, axis=0), decoder.noise_kind)
    token, logp, every = decoder.draw(hidden, uniforms[0], 0, digest)
    start = caches, token, token == end, digest, jnp.int32(0)
    _, (drawn, later, experts) = lax.scan(decoder.step, start, uniforms[1:])
    tokens, logps = drawn[:, 0], lax.bitcast_convert_type(drawn[:, 1], jnp.float32)
    responses = jnp.concatenate([token[None], tokens]).T
    logps = jnp.concatenate([logp[None], logps]).T
    mask = response_mask(responses, end)
    prompts = jnp.repeat(prompts, group_size, axis=0)
    return Trajectory(
        prompts=prompts,
        responses=responses,
        mask=mask,
        logp_infer=jnp.where(mask, logps, 0.0),
        rewards=check(jnp.concatenate([prompts, responses], axis=-1)),
        routed_experts=None if read is None else _join_experts(jnp.repeat(read, group_size, axis=0), experts),
        logp_infer_vocabulary=None if every is None else _from_first(every, later),
    )


@dataclass(frozen=True, eq=False)  # arrays have no hash
class _Decoder:
    """The constants of one rollout, and how it draws one token after another."""

    weights: Weights
    config: TransformerConfig
    engine: Engine
    sampling: SamplingParams
    key: Array
    prompt_length: int
    end: int
    pad: int
    vocabulary: bool

    @property
    def noise_kind(self) -> str:
        """The kind of the injected noise, whose context the digest describes."""
        return self.sampling.noise.kind if self.sampling.noise else "fixed"

    def draw(self, hidden: Array, uniform: Array, position: Array | int, digest: Array) -> tuple:
        """Draw the tokens [B] at `position`, with their log-probabilities and those of the vocabulary."""
        sampling, engine = self.sampling, self.engine
        noise_key = jax.random.fold_in(stream(self.key, "logit noise"), position)
        read = read_logits(self.weights, engine, hidden)[:, 0]
        logits = perturb_logits(read, sampling.noise, noise_key, digest)
        allowed = processed_logits(logits, sampling, position, self.end)
        token = draw_token(uniform, softmax(allowed, engine))
        reported = token_logps(allowed if sampling.processed else logits, engine)
        logp = jnp.take_along_axis(reported, token[:, None], axis=1)[:, 0]
        return token, logp, reported if self.vocabulary else None

    def step(self, carry: tuple, uniform: Array) -> tuple[tuple, tuple]:
        """Read the last token and draw the next one; the body of the scan over positions."""
        # `read` counts from 0 as the scan does: XLA keeps one counter, where a second costs a copy per token.
        caches, last, ended, digest, read = carry
        hidden, caches, experts, _ = extend(
            self.weights, self.config, self.engine, caches, last[:, None], self.prompt_length + read
        )
        digest = extend_digest(digest, last, self.noise_kind)
        token, logp, every = self.draw(hidden, uniform, read + 1, digest)
        token = jnp.where(ended, self.pad, token)
        # In one array: XLA writes tokens alone by a memory copy at an offset, a GPU kernel more per token.
        drawn = jnp.stack([token, lax.bitcast_convert_type(logp, jnp.int32)])
        return (caches, token, ended | (token == self.end), digest, read + 1), (drawn, every, experts)


def _from_first(first: Array, later: Array) -> Array:
    """Join [B, V] of the first token and [T - 1, B, V] of the others to [B, T, V]."""
    return jnp.swapaxes(jnp.concatenate([first[None], later]), 0, 1)


def _join_experts(read: Array, decoded: Array) -> Array:
    """Join the experts of prompts [B, P, L, k] and of decoded tokens [T - 1, B, 1, L, k]."""
    return jnp.concatenate([read, jnp.swapaxes(decoded[:, :, 0], 0, 1)], axis=1)
