"""The transformer: Qwen3 and Qwen3-MoE, every product, norm, softmax, cache and router through the engine.

One function extends a sequence by some tokens and a cache by their keys and values. Scoring is one call on
all tokens with an empty cache; decoding is one call per token. So both are the same arithmetic, and agree bit
for bit under every engine whose sums do not depend on the shape of a batch.

Reference: Qwen3 arXiv 2505.09388; Qwen3ForCausalLM and Qwen3MoeForCausalLM of transformers.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int, PyTree

from simlab.core.arrays import AnyArray
from simlab.engines import (
    Engine,
    add_residual,
    attend,
    combine_experts,
    find_engine,
    linear,
    log_softmax,
    quantize_weights,
    rms_norm,
    route,
    site_key,
    softmax,
    store,
    store_cache,
)
from simlab.models.config import TransformerConfig
from simlab.models.kv_cache import Cache, Caches, cache_length, empty_cache, extend_cache, repeat_caches
from simlab.models.parameters import Params
from simlab.models.prompt_rows import PromptRows
from simlab.models.rotary import rotate, rotation_table
from simlab.models.token_lookup import embed_tokens, pick_tokens

Weights = dict[str, PyTree]
"""Parameters as an engine holds them, from `prepare`."""

SCANNED_LAYERS = 4
"""Number of layers from which on `stack_layers` stacks them."""
REDUCED = frozenset(("o", "down"))
"""Matrices of the products at `Engine.reduced`."""

States = dict[str, Array]
"""Values by the name of the site that computes them."""


class Scores(NamedTuple):
    """Result of scoring, in nats: `logp` of the sampled tokens and `entropy`, float32 [B, T].

    `routed_experts` are as in `Forward`. `logp_vocabulary` [B, T, V], of all tokens, is None unless
    requested.
    """

    logp: Float[Array, "B T"]
    entropy: Float[Array, "B T"]
    routed_experts: Int[Array, "B S L top_k"] | None
    logp_vocabulary: Float[Array, "B T V"] | None = None


class Stream(NamedTuple):
    """Residual stream [B, T, D]: as it is stored, and as the next norm reads it."""

    stored: Float[Array, "B T D"]
    read: Float[Array, "B T D"]


class Positions(NamedTuple):
    """Positions of the T new tokens: the first one in the cache, all, their rotations, visible keys [T, S].

    If the tokens are `rows` of prompts and responses, rotations and visible keys have a leading axis [B].
    """

    start: Int[Array, ""] | int
    at: Int[Array, "C1 T"]
    cos: Float[Array, "*C T head_dim"]
    sin: Float[Array, "*C T head_dim"]
    visible: Bool[Array, "*C T S"]
    rows: PromptRows | None = None


class Intermediates(NamedTuple):
    """Outputs of the sites of a forward pass [B, T, ...]; of experts, only what they return.

    A compiled function that does not return them does not compute them. A scan over layers has none of
    `layers`.
    """

    embedding: Float[Array, "B T D"]
    layers: tuple[States, ...]
    last_norm: Float[Array, "B T D"]


class Forward(NamedTuple):
    """Result of `extend`.

    `hidden` are the normed hidden states [B, T, D] and `caches` hold the new keys and values.
    `routed_experts` are the engine's own choice, int32 [B, T, L, top_k], or None if dense.
    """

    hidden: Float[Array, "B T D"]
    caches: Caches
    routed_experts: Int[Array, "B T L top_k"] | None
    intermediates: Intermediates


def prepare(params: Params, config: TransformerConfig, engine: Engine, key: Array | None = None) -> Weights:
    """Return `params` as the engine holds them, rounded once for all tokens to come.

    Matrices are quantized at the weight sites of their products, `o` and `down` at `projection.weights` like
    all others of a dense layer; embeddings, biases and the weights of norms are stored at `elementwise`.
    `key` is needed where the engine rounds weights stochastically.
    """
    head = params["embedding"].T if config.tie_word_embeddings else params["lm_head"]
    return {
        "embedding": store(params["embedding"], engine.elementwise, site_key(key, "embedding")),
        "layers": tuple(
            _prepare_layer(layer, engine, site_key(key, f"layer {number}"))
            for number, layer in enumerate(params["layers"])
        ),
        "norm": store(params["norm"], engine.elementwise, site_key(key, "norm")),
        "lm_head": quantize_weights(head, engine.lm_head, site_key(key, "lm_head")),
    }


def _prepare_layer(layer: Params, engine: Engine, key: Array | None) -> Weights:
    prepared: Weights = {}
    for name, weight in layer.items():
        own = site_key(key, name)
        product = engine.reduced if name in REDUCED else engine.projection
        if name == "router":
            prepared[name] = quantize_weights(weight, engine.router, own)
        elif weight.ndim == 1:
            prepared[name] = store(weight, engine.elementwise, own)
        elif weight.ndim == 3:
            keys = None if own is None else jax.random.split(own, len(weight))
            by_expert = jax.vmap(quantize_weights, (0, None, None if own is None else 0))
            prepared[name] = by_expert(weight, engine.experts or product, keys)
        else:
            prepared[name] = quantize_weights(weight, product, own)
    return prepared


def stack_layers(
    weights: Weights, caches: tuple[Cache, ...], config: TransformerConfig
) -> tuple[Weights, Caches]:
    """Return weights and caches of a deep model stacked by layer, for `extend` to scan over.

    It compiles one layer instead of all of them. Models of fewer than `SCANNED_LAYERS` stay as they are: for
    them the scan costs more than it saves.
    """
    if config.num_hidden_layers < SCANNED_LAYERS:
        return weights, caches
    layers, stacked = (jax.tree.map(lambda *x: jnp.stack(x), *trees) for trees in (weights["layers"], caches))
    return {**weights, "layers": layers}, stacked


def extend(
    weights: Weights,
    config: TransformerConfig,
    engine: Engine,
    caches: Caches,
    tokens: Int[AnyArray, "B T"],
    start: Int[Array, ""] | int,
    replayed: Int[AnyArray, "B T L top_k"] | None = None,
    rows: PromptRows | None = None,
) -> Forward:
    """Run the forward pass on `tokens`, which follow the positions that `caches` hold.

    Layers are unrolled, or scanned over if weights and caches come from `stack_layers`.

    Args:
        weights: From `prepare`.
        config: Architecture.
        engine: Numerics of every site.
        caches: One per layer; start + T must not exceed their length.
        tokens: int32 [B, T], at positions start to start + T - 1.
        start: Number of positions already in the caches.
        replayed: Experts to use instead of the engine's own choice, int32 [B, T, L, top_k].
        rows: Shapes of prompts and responses, of which all `tokens` are rows; `start` is 0 then.

    Returns:
        The hidden states, the extended caches, and what else a `Forward` holds.
    """
    length, steps = cache_length(caches), np.arange(tokens.shape[1], dtype=np.int32)
    if rows is None:
        reading = _positions(config, length, start + steps, start)
    else:
        reading = _row_positions(config, rows, len(tokens))
    block = partial(_block, config, engine, reading)
    embedding = embed_tokens(weights["embedding"], tokens)
    stream, experts = Stream(embedding, embedding), None
    if isinstance(caches, Cache):
        by_layer = None if replayed is None else jnp.moveaxis(replayed, 2, 0)
        # A gradient keeps what enters a layer and computes the rest again; otherwise this changes nothing.
        block = jax.checkpoint(block, prevent_cse=False)
        stream, (caches, chosen, _) = lax.scan(block, stream, (weights["layers"], caches, by_layer))
        states = ()
        if chosen is not None:
            experts = jnp.moveaxis(chosen, 0, 2)
    else:
        made = []
        for number, (layer, cache) in enumerate(zip(weights["layers"], caches, strict=True)):
            of_layer = None if replayed is None else replayed[:, :, number]
            stream, result = block(stream, (layer, cache, of_layer))
            made.append(result)
        caches, chosen, states = zip(*made, strict=True)
        if config.num_experts:
            experts = jnp.stack(chosen, axis=2)
    hidden = rms_norm(stream.read, weights["norm"], engine, epsilon=config.rms_norm_eps)
    return Forward(hidden, caches, experts, Intermediates(embedding, states, hidden))


def _block(
    config: TransformerConfig,
    engine: Engine,
    reading: Positions,
    stream: Stream,
    of_layer: tuple[Weights, Cache, AnyArray | None],
) -> tuple[Stream, tuple[Cache, Array | None, States]]:
    """Apply norm, attention, residual; then norm, MLP or experts, residual."""
    layer, cache, replayed = of_layer
    x = rms_norm(stream.read, layer["attention_norm"], engine, epsilon=config.rms_norm_eps)
    mixed, cache, attention = _self_attention(layer, config, engine, cache, x, reading)
    middle = Stream(*add_residual(stream.stored, mixed, engine))
    y = rms_norm(middle.read, layer["mlp_norm"], engine, epsilon=config.rms_norm_eps)
    feed_forward = _experts if config.num_experts else _mlp
    update, chosen, mlp = feed_forward(layer, config, engine, y, replayed)
    after = Stream(*add_residual(middle.stored, update, engine))
    states = {"attention norm": x, **attention, "residual after attention": middle.stored}
    return after, (cache, chosen, states | {"mlp norm": y, **mlp, "residual after mlp": after.stored})


def _positions(
    config: TransformerConfig, length: int, positions: Array | np.ndarray, start: Int[Array, ""] | int
) -> Positions:
    tables = rotation_table(length, config.head_dim, config.rope_theta)
    # Of positions that are known while tracing, the rotations are constants of the compiled function.
    cos, sin = (
        jnp.asarray(table[positions] if isinstance(positions, np.ndarray) else jnp.asarray(table)[positions])
        for table in tables
    )
    visible = jnp.arange(length)[None, :] <= positions[:, None]
    return Positions(start, jnp.asarray(positions)[None], cos, sin, visible)


def _row_positions(config: TransformerConfig, rows: PromptRows, count: int) -> Positions:
    """Return the positions of `count` rows of prompts and responses."""
    first = rows.prompt_length
    tables = (
        np.arange(rows.length, dtype=np.int32),
        *rotation_table(rows.length, config.head_dim, config.rope_theta),
    )
    at, cos, sin = (rows.select(table[: rows.width], table[first:], count) for table in tables)
    return Positions(0, at, cos, sin, rows.visible(count), rows)


def _self_attention(
    layer: Weights, config: TransformerConfig, engine: Engine, cache: Cache, x: Array, reading: Positions
) -> tuple[Array, Cache, States]:
    """Return the attention of normed x [B, T, D] over the cache and itself, before the residual sum."""
    projected = qkv = linear(x, layer["qkv"], engine)
    if config.attention_bias:
        qkv = store(qkv + layer["qkv_bias"][None, None], engine.projection.output)
    heads = qkv.reshape(*x.shape[:2], -1, config.head_dim)
    queries, keys, values = jnp.split(heads, np.cumsum(config.heads)[:2], axis=2)
    if config.qk_norm:
        queries = rms_norm(queries, layer["q_norm"], engine, epsilon=config.rms_norm_eps)
        keys = rms_norm(keys, layer["k_norm"], engine, epsilon=config.rms_norm_eps)
    queries, keys = (rotate(x, reading.cos, reading.sin, engine) for x in (queries, keys))
    keys, values = (store_cache(x, engine, positions=reading.at[..., None]) for x in (keys, values))
    if reading.rows:
        keys, values = (reading.rows.put_behind_prompt(x) for x in (keys, values))
    cache = extend_cache(cache, keys, values, reading.start)
    mixed = _attend_by_group(config, engine, queries, cache, reading.visible)
    o = linear(mixed, layer["o"], engine.reduced)
    states = {"qkv": projected, "queries": queries, "keys": keys, "values": values}
    return o, cache, states | {"attention": mixed, "o": o}


def _attend_by_group(
    config: TransformerConfig, engine: Engine, queries: Array, cache: Cache, visible: Array
) -> Array:
    """Return attention of queries [B, T, H, head_dim] as [B, T, H head_dim].

    The query heads that share a key head are rows of one product.
    """
    batch, length = queries.shape[:2]
    heads, per_key, width = config.num_key_value_heads, config.queries_per_key, config.head_dim
    rows = queries.reshape(batch, length, heads, per_key, width).transpose(0, 2, 3, 1, 4)
    rows = rows.reshape(batch * heads, per_key * length, width)
    mask, of_mask = jnp.tile(visible, (per_key, 1)), None
    if visible.ndim > 2:
        mask, of_mask = jnp.repeat(mask, heads, axis=0), 0
    attend_rows = jax.vmap(lambda q, k, v, mask: attend(q, k.T, v, mask, engine), (0, 0, 0, of_mask))
    mixed = attend_rows(rows, cache.keys, cache.values, mask)
    mixed = mixed.reshape(batch, heads, per_key, length, width).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(batch, length, -1)


def _mlp(
    layer: Weights, _config: TransformerConfig, engine: Engine, x: Array, _replayed: AnyArray | None
) -> tuple[Array, None, States]:
    """Return SwiGLU of normed x [B, T, D]: down(silu(gate) up)."""
    both = linear(x, layer["gate_up"], engine.projection)
    activated, gated = _apply_gate(both, engine)
    result = linear(gated, layer["down"], engine.reduced)
    return result, None, {"gate and up": both, "activation": activated, "gated": gated, "down": result}


def _experts(
    layer: Weights, config: TransformerConfig, engine: Engine, x: Array, replayed: AnyArray | None
) -> tuple[Array, Array, States]:
    """Return the mixture of normed x [B, T, D], and the experts that the engine chooses [B, T, top_k]."""
    router_logits = linear(x, layer["router"], engine.router)
    top_k, normalize = config.num_experts_per_tok, config.norm_topk_prob
    chosen, expert_weights = route(router_logits, engine, top_k, normalize=normalize)
    used = chosen
    if replayed is not None:
        used, expert_weights = route(router_logits, engine, top_k, normalize=normalize, replayed=replayed)
    # Every expert reads every token: at these sizes dense products are cheaper than sorting tokens.
    first, last = engine.experts or engine.projection, engine.experts or engine.reduced
    both = jax.vmap(linear, (None, 0, None))(x, layer["gate_up"], first)
    gated = _apply_gate(both, engine)[1]
    outputs = jax.vmap(linear, (0, 0, None), out_axes=-2)(gated, layer["down"], last)
    outputs = jnp.take_along_axis(outputs, used[..., None], axis=-2)
    ranks = used * engine.expert_ranks // config.num_experts
    combined = combine_experts(outputs, expert_weights, engine, ranks=ranks)
    return combined, chosen, {"router": router_logits, "experts chosen": outputs, "experts": combined}


def _apply_gate(both: Array, engine: Engine) -> tuple[Array, Array]:
    """Return silu of the gate, and that times the other half, of `both` [..., 2 I]."""
    gate, up = jnp.split(both, 2, axis=-1)
    activated = store(jax.nn.silu(gate), engine.elementwise)
    return activated, store(activated * up, engine.elementwise)


def read_logits(weights: Weights, engine: Engine, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
    """Return logits [..., V] of normed hidden states [..., D]."""
    return linear(hidden, weights["lm_head"], engine.lm_head)


def token_logps(logits: Float[AnyArray, "*B V"], engine: Engine) -> Float[Array, "*B V"]:
    """Return the log-probabilities [..., V] that the engine reports, in nats.

    An engine that rounds token probabilities reports the logarithm of the rounded ones.
    """
    if engine.token_softmax.probs.format is None:
        return log_softmax(logits, engine)
    return jnp.log(softmax(logits, engine))


def logits(
    params: Params, config: TransformerConfig, tokens: Int[AnyArray, "B T"], engine: Engine | str = "f32"
) -> Float[Array, "B T V"]:
    """Compute next-token logits under an engine.

    Args:
        params: of the model.
        config: its shapes.
        tokens: int32 token ids [B, T].
        engine: a name of the catalog, or a record.

    Returns:
        Float32 logits [B, T, V]; those at t predict token t + 1.

    Raises:
        ValueError: For an unknown engine.

    Example:
        >>> from simlab.models import MODELS, init_params
        >>> config = MODELS["tiny-dense"]
        >>> params = init_params(jax.random.key(0), config)
        >>> logits(params, config, jnp.zeros((1, 3), jnp.int32), "bf16").shape
        (1, 3, 32)
    """
    engine = find_engine(engine)
    weights = prepare(params, config, engine)
    hidden, *_ = extend(weights, config, engine, empty_cache(config, *tokens.shape), tokens, 0)
    return read_logits(weights, engine, hidden)


def response_logps(
    params: Params,
    config: TransformerConfig,
    engine: Engine,
    prompts: Int[AnyArray, "B P"],
    responses: Int[AnyArray, "B T"],
    replayed: Int[AnyArray, "B S L top_k"] | None = None,
    *,
    group_size: int = 1,
    vocabulary: bool = False,
    scan_layers: bool = False,
) -> Scores:
    """Score responses to prompts under an engine.

    Args:
        params: of the model.
        config: its shapes.
        engine: the engine that scores.
        prompts: int32 token ids [B, P].
        responses: int32 token ids [B, T].
        replayed: experts to use, int32 [B, P + T - 1, L, top_k], as in `extend`; None routes anew.
        group_size: rows that share a prompt, which is then read once, as in a rollout.
        vocabulary: whether to return the log-probabilities of all tokens.
        scan_layers: whether to scan over the layers (`stack_layers`); a gradient then computes each again.

    Returns:
        Scores of the response tokens; `routed_experts` are [B, P + T - 1, L, top_k].
    """
    weights = prepare(params, config, engine)
    count = len(prompts) // group_size if responses.shape[1] > 1 else len(prompts)
    caches: Caches = empty_cache(config, count, prompts.shape[1] + responses.shape[1] - 1)
    if scan_layers:
        weights, caches = stack_layers(weights, caches, config)
    response_inputs = responses[:, :-1]
    hidden, experts = _read_shared(
        weights, config, engine, caches, prompts, response_inputs, replayed, group_size
    )
    logps = token_logps(read_logits(weights, engine, hidden), engine)
    entropies = -jnp.sum(jnp.where(logps > -jnp.inf, jnp.exp(logps) * logps, 0.0), axis=-1)
    logp = pick_tokens(logps, responses)
    return Scores(logp, entropies, experts, logps if vocabulary else None)


def _read_shared(
    weights: Weights,
    config: TransformerConfig,
    engine: Engine,
    caches: Caches,
    prompts: AnyArray,
    response_inputs: AnyArray,
    replayed: AnyArray | None,
    group_size: int,
) -> tuple[Array, Array | None]:
    """Read prompts [B, P] and what follows them [B, R]; return hidden states from the last of a prompt on.

    They are [B, 1 + R, D]; the experts chosen, [B, P + R, L, top_k], are of all tokens.
    """
    count, length = len(prompts) // group_size, prompts.shape[1]
    if group_size == 1 or not response_inputs.shape[1]:
        tokens = jnp.concatenate([prompts, response_inputs], axis=1)
        forward = extend(weights, config, engine, caches, tokens, 0, replayed)
        return forward.hidden[:, length - 1 :], forward.routed_experts
    rows = PromptRows(group_size, length, response_inputs.shape[1])
    if isinstance(caches, tuple) and rows.fits(config, engine):
        tokens = rows.join(prompts, response_inputs)
        caches = empty_cache(config, len(tokens), rows.length)
        return rows.split(extend(weights, config, engine, caches, tokens, 0, rows=rows).hidden), None
    first, later = (
        (None, None) if replayed is None else (replayed[::group_size, :length], replayed[:, length:])
    )
    read, caches, chosen, _ = extend(weights, config, engine, caches, prompts[::group_size], 0, first)
    caches = repeat_caches(caches, count, group_size)
    hidden, _, experts, _ = extend(weights, config, engine, caches, response_inputs, length, later)
    hidden = jnp.concatenate([jnp.repeat(read[:, -1:], group_size, axis=0), hidden], axis=1)
    if chosen is None or experts is None:
        return hidden, None
    return hidden, jnp.concatenate([jnp.repeat(chosen, group_size, axis=0), experts], axis=1)
