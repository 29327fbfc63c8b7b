"""The transformer: Qwen3 and Qwen3-MoE, every product, norm, softmax, cache and router through the engine.

One function extends a sequence by some tokens and a cache by their keys and values. Scoring is one call on
all tokens with an empty cache; decoding is one call per token. So both are the same arithmetic, and agree bit
for bit under every engine whose sums do not depend on the shape of a batch.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from simlab.engines import (
    Engine,
    add_residual,
    attend,
    combine_experts,
    find_engine,
    linear,
    log_softmax,
    quantize_operand,
    rms_norm,
    route,
    softmax,
    store,
    store_cache,
)
from simlab.formats import Quantized
from simlab.models.config import TransformerConfig
from simlab.models.kv_cache import Cache, empty_cache, extended, repeated
from simlab.models.listen import heard
from simlab.models.parameters import Params
from simlab.models.rotary import rotate, rotation_table

Weights = dict[str, Any]


class Scores(NamedTuple):
    """What scoring returns: `logp` of the sampled tokens and `entropy`, [B, T]; `experts` as in `extend`."""

    logp: Array
    entropy: Array
    experts: Array | None


def prepare(params: Params, config: TransformerConfig, engine: Engine) -> Weights:
    """Return `params` as the engine holds them, rounded once for all tokens to come.

    Matrices go to the sites of their products; embeddings, biases and the weights of norms to `elementwise`.
    """
    head = params["embedding"].T if config.tie_word_embeddings else params["lm_head"]
    return {
        "embedding": store(params["embedding"], engine.elementwise),
        "layers": tuple(_prepare_layer(layer, engine) for layer in params["layers"]),
        "norm": store(params["norm"], engine.elementwise),
        "lm_head": quantize_operand(head, engine.lm_head.weights),
    }


def _prepare_layer(layer: Params, engine: Engine) -> Weights:
    def quantized(w: Array) -> Quantized:
        return quantize_operand(w, engine.projection.weights)

    prepared: Weights = {}
    for name, weight in layer.items():
        if name == "router":
            prepared[name] = quantize_operand(weight, engine.router.weights)
        elif weight.ndim == 1:
            prepared[name] = store(weight, engine.elementwise)
        else:
            prepared[name] = jax.vmap(quantized)(weight) if weight.ndim == 3 else quantized(weight)
    return prepared


def extend(
    weights: Weights,
    config: TransformerConfig,
    engine: Engine,
    caches: tuple[Cache, ...],
    tokens: Array,
    start: Array | int,
    replayed: Array | None = None,
) -> tuple[Array, tuple[Cache, ...], Array | None]:
    """Read `tokens [B, T]` at positions start to start + T - 1 behind what `caches` hold.

    Returns the normed hidden states [B, T, D], the caches with the new keys and values, and the experts that
    the engine chooses, int32 [B, T, L, top_k] (None if dense). Experts `replayed`, of that shape, are used in
    their stead; what is returned is still the engine's own choice. `weights` are from `prepare`; start + T
    must not exceed the length of the caches.
    """
    length = caches[0].values.shape[1]
    cos, sin = rotation_table(length, config.head_dim, config.rope_theta)
    positions = start + jnp.arange(tokens.shape[1])
    angles = jnp.asarray(cos)[positions], jnp.asarray(sin)[positions]
    visible = jnp.arange(length)[None, :] <= positions[:, None]
    residual = read = heard("embedding", weights["embedding"][tokens])
    written, experts = [], []
    for number, (layer, cache) in enumerate(zip(weights["layers"], caches, strict=True)):
        x = heard(
            "attention norm", rms_norm(read, layer["attention_norm"], engine, epsilon=config.rms_norm_eps)
        )
        x, cache = _self_attention(layer, config, engine, cache, x, angles, visible, start)
        residual, read = add_residual(residual, x, engine)
        heard("residual after attention", residual)
        x = heard("mlp norm", rms_norm(read, layer["mlp_norm"], engine, epsilon=config.rms_norm_eps))
        if config.num_experts:
            x, chosen = _experts(
                layer, config, engine, x, None if replayed is None else replayed[:, :, number]
            )
            experts.append(chosen)
        else:
            x = _swiglu(layer["gate_up"], layer["down"], engine, x)
        residual, read = add_residual(residual, x, engine)
        heard("residual after mlp", residual)
        written.append(cache)
    hidden = heard("last norm", rms_norm(read, weights["norm"], engine, epsilon=config.rms_norm_eps))
    return hidden, tuple(written), jnp.stack(experts, axis=2) if experts else None


def _self_attention(
    layer: Weights,
    config: TransformerConfig,
    engine: Engine,
    cache: Cache,
    x: Array,
    angles: tuple[Array, Array],
    visible: Array,
    start: Array | int,
) -> tuple[Array, Cache]:
    """Attention of normed x [B, T, D] over the cache and itself, before the residual sum."""
    qkv = heard("qkv", linear(x, layer["qkv"], engine))
    if config.attention_bias:
        qkv = store(qkv + layer["qkv_bias"][None, None], engine.projection.output)
    heads = qkv.reshape(*x.shape[:2], -1, config.head_dim)
    queries, keys, values = jnp.split(heads, np.cumsum(config.heads)[:2], axis=2)
    if config.qk_norm:
        queries = rms_norm(queries, layer["q_norm"], engine, epsilon=config.rms_norm_eps)
        keys = rms_norm(keys, layer["k_norm"], engine, epsilon=config.rms_norm_eps)
    queries, keys = (rotate(x, *angles, engine) for x in (queries, keys))
    heard("queries", queries)
    keys, values = heard("keys", store_cache(keys, engine)), heard("values", store_cache(values, engine))
    cache = extended(cache, keys, values, start)
    mixed = heard("attention", _attend_by_group(config, engine, queries, cache, visible))
    return heard("o", linear(mixed, layer["o"], engine)), cache


def _attend_by_group(
    config: TransformerConfig, engine: Engine, queries: Array, cache: Cache, visible: Array
) -> Array:
    """Return attention of queries [B, T, H, head_dim] as [B, T, H head_dim].

    The query heads that share a key head are rows of one product.
    """
    batch, length = queries.shape[:2]
    heads, share, width = config.num_key_value_heads, config.queries_per_key, config.head_dim
    rows = queries.reshape(batch, length, heads, share, width).transpose(0, 2, 3, 1, 4)
    rows = rows.reshape(batch * heads, share * length, width)
    mask = jnp.tile(visible, (share, 1))
    mixed = jax.vmap(lambda q, k, v: attend(q, k.T, v, mask, engine))(rows, cache.keys, cache.values)
    mixed = mixed.reshape(batch, heads, share, length, width).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(batch, length, -1)


def _experts(
    layer: Weights, config: TransformerConfig, engine: Engine, x: Array, replayed: Array | None
) -> tuple[Array, Array]:
    """Mixture of normed x [B, T, D], and the experts that the engine chooses [B, T, top_k]."""
    router_logits = heard("router", linear(x, layer["router"], engine.router))
    top_k, normalize = config.num_experts_per_tok, config.norm_topk_prob
    chosen, shares = route(router_logits, engine, top_k, normalize=normalize)
    used = chosen
    if replayed is not None:
        used, shares = route(router_logits, engine, top_k, normalize=normalize, replayed=replayed)
    # Every expert reads every token: at these sizes dense products are cheaper than sorting tokens.
    outputs = jax.vmap(lambda gate_up, down: _swiglu(gate_up, down, engine, x), out_axes=-2)(
        layer["gate_up"], layer["down"]
    )
    outputs = jnp.take_along_axis(outputs, used[..., None], axis=-2)
    heard("experts chosen", outputs)
    return heard("experts", combine_experts(outputs, shares, engine)), chosen


def _swiglu(gate_up: Quantized, down: Quantized, engine: Engine, x: Array) -> Array:
    gate, up = jnp.split(heard("gate and up", linear(x, gate_up, engine)), 2, axis=-1)
    activated = heard("activation", store(jax.nn.silu(gate), engine.elementwise))
    gated = heard("gated", store(activated * up, engine.elementwise))
    return heard("down", linear(gated, down, engine))


def read_logits(weights: Weights, engine: Engine, hidden: Array) -> Array:
    """Return logits [..., V] of normed hidden states [..., D]."""
    return heard("logits", linear(hidden, weights["lm_head"], engine.lm_head))


def token_logps(logits: Array, engine: Engine) -> Array:
    """Return log-probabilities [..., V] as the engine reports them.

    An engine that rounds token probabilities reports the logarithm of the rounded ones.
    """
    if engine.token_softmax.probs.format is None:
        return log_softmax(logits, engine)
    return jnp.log(softmax(logits, engine))


def logits(params: Params, config: TransformerConfig, tokens: Array, engine: Engine | str = "f32") -> Array:
    """Return next-token logits [B, T, V] of token ids [B, T] under an engine, given by name or record."""
    engine = find_engine(engine)
    weights = prepare(params, config, engine)
    hidden, *_ = extend(weights, config, engine, empty_cache(config, *tokens.shape), tokens, 0)
    return read_logits(weights, engine, hidden)


def response_logps(
    params: Params,
    config: TransformerConfig,
    engine: Engine,
    prompts: Array,
    responses: Array,
    replayed: Array | None = None,
    *,
    group_size: int = 1,
) -> Scores:
    """Score responses [B, T] to prompts [B, P], with the experts `replayed` if given.

    `replayed` is int32 [B, P + T - 1, L, top_k], as in `extend`. Every `group_size` rows have the same
    prompt, which is read once, as in a rollout.
    """
    weights = prepare(params, config, engine)
    hidden, experts = _read_shared(weights, config, engine, prompts, responses[:, :-1], replayed, group_size)
    logps = token_logps(read_logits(weights, engine, hidden), engine)
    entropies = -jnp.sum(jnp.where(logps > -jnp.inf, jnp.exp(logps) * logps, 0.0), axis=-1)
    return Scores(jnp.take_along_axis(logps, responses[..., None], axis=-1)[..., 0], entropies, experts)


def _read_shared(
    weights: Weights,
    config: TransformerConfig,
    engine: Engine,
    prompts: Array,
    rest: Array,
    replayed: Array | None,
    group_size: int,
) -> tuple[Array, Array | None]:
    """Read prompts [B, P] and what follows them [B, R]; return hidden states from the last of a prompt on.

    They are [B, 1 + R, D]; the experts chosen, [B, P + R, L, top_k], are of all tokens.
    """
    count, length = len(prompts) // group_size, prompts.shape[1]
    tokens = jnp.concatenate([prompts, rest], axis=1)
    if group_size == 1 or not rest.shape[1]:
        caches = empty_cache(config, *tokens.shape)
        hidden, _, experts = extend(weights, config, engine, caches, tokens, 0, replayed)
        return hidden[:, length - 1 :], experts
    first, later = (
        (None, None) if replayed is None else (replayed[::group_size, :length], replayed[:, length:])
    )
    caches = empty_cache(config, count, tokens.shape[1])
    read, caches, chosen = extend(weights, config, engine, caches, prompts[::group_size], 0, first)
    caches = repeated(caches, count, group_size)
    hidden, _, experts = extend(weights, config, engine, caches, rest, length, later)
    hidden = jnp.concatenate([jnp.repeat(read[:, -1:], group_size, axis=0), hidden], axis=1)
    if chosen is None or experts is None:
        return hidden, None
    return hidden, jnp.concatenate([jnp.repeat(chosen, group_size, axis=0), experts], axis=1)
