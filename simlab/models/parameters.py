"""Parameters of a transformer: a tree of float32 master weights."""

from functools import cache

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PyTree

from simlab.core.streams import draw_array, stream
from simlab.models.config import TransformerConfig

Params = dict[str, PyTree]


def init_params(key: Array, config: TransformerConfig) -> Params:
    """Return fresh float32 parameters: normal weights, norms of one, biases of zero.

    Matrices have the standard deviation 1 / sqrt(fan-in), the embedding 1 / sqrt(D).

    `embedding [V, D]`, `layers` (a tuple of dicts), `norm [D]`, and `lm_head [D, V]` unless tied. Matrices
    are `[in, out]`; queries, keys and values are one matrix `qkv`, gate and up projections one matrix
    `gate_up`, as engines fuse them. An MoE layer has `router [D, E]` and a leading expert axis on the rest.
    The residual branches' last matrices are scaled by 1 / sqrt(2 L).

    Reference: GPT-2, Radford et al. 2019, Sec. 2.3.
    """
    width = config.hidden_size
    params: Params = {
        "embedding": _normal(stream(key, "embedding"), (config.vocab_size, width), width),
        "layers": tuple(
            _init_layer(stream(key, f"layer {layer}"), config) for layer in range(config.num_hidden_layers)
        ),
        "norm": jnp.ones(width, jnp.float32),
    }
    if not config.tie_word_embeddings:
        params["lm_head"] = _normal(stream(key, "lm_head"), (width, config.vocab_size), width)
    return params


@cache
def shapes_of(config: TransformerConfig) -> Params:
    """Return the tree of shapes and dtypes of the parameters of `config` without allocating them."""
    return jax.eval_shape(lambda: init_params(jax.random.key(0), config))


def _init_layer(key: Array, config: TransformerConfig) -> Params:
    width = config.hidden_size
    queries, qkv = config.num_attention_heads * config.head_dim, sum(config.heads) * config.head_dim
    depth = 2 * config.num_hidden_layers
    experts = (config.num_experts,) if config.num_experts else ()
    inner = config.moe_intermediate_size if config.num_experts else config.intermediate_size
    layer: Params = {
        "attention_norm": jnp.ones(width, jnp.float32),
        "qkv": _normal(stream(key, "qkv"), (width, qkv), width),
        "o": _normal(stream(key, "o"), (queries, width), queries * depth),
        "mlp_norm": jnp.ones(width, jnp.float32),
        "gate_up": _normal(stream(key, "gate_up"), (*experts, width, 2 * inner), width),
        "down": _normal(stream(key, "down"), (*experts, inner, width), inner * depth),
    }
    if config.num_experts:
        layer["router"] = _normal(stream(key, "router"), (width, config.num_experts), width)
    if config.qk_norm:
        layer["q_norm"] = jnp.ones(config.head_dim, jnp.float32)
        layer["k_norm"] = jnp.ones(config.head_dim, jnp.float32)
    if config.attention_bias:
        layer["qkv_bias"] = jnp.zeros(qkv, jnp.float32)
    return layer


def _normal(key: Array, shape: tuple[int, ...], variance_of: int) -> Array:
    return draw_array(jax.random.normal, key, shape, jnp.float32) / jnp.sqrt(jnp.float32(variance_of))
