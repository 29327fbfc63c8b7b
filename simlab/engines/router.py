"""The choice of experts from router logits."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from simlab.core.arrays import AnyArray
from simlab.engines.catalog import find_engine
from simlab.engines.engine import Engine
from simlab.engines.site import site_key, store
from simlab.engines.softmax import softmax
from simlab.formats.scale_rules import divide, multiply


def route(
    logits: Float[AnyArray, "*B E"],
    engine: Engine | str,
    top_k: int,
    *,
    normalize: bool = True,
    replayed: Int[AnyArray, "*B K"] | None = None,
    key: Array | None = None,
) -> tuple[Int[Array, "*B K"], Float[Array, "*B K"]]:
    """Choose `top_k` of E experts from router logits, or take the ones `replayed`.

    The choice has no gradient, the weights have.

    Args:
        logits: float32 router logits [..., E].
        engine: an engine, or its name.
        top_k: experts per token.
        normalize: whether to divide the weights by their sum, added in the order of the experts.
        replayed: experts to take instead, int32 [..., top_k].
        key: of the random bits; needed where a site rounds stochastically.

    Returns:
        Experts int32 [..., top_k] and their weights float32 [..., top_k]. Chosen ones are in order of falling
        probability, the lower index first of equal ones; replayed ones keep their order.

    Reference: Qwen3MoeSparseMoeBlock of transformers; vLLM fused_topk.
    """
    record = find_engine(engine)
    probs = softmax(logits, record.router_softmax, site_key(key, "softmax"))
    if replayed is None:
        weights, experts = lax.top_k(probs, top_k)
    else:
        weights, experts = jnp.take_along_axis(probs, replayed, axis=-1), replayed
    if normalize:
        weights = divide(weights, _sum_in_order(weights)[..., None])
    return experts, store(weights, record.router_weights, site_key(key, "weights"))


def combine_experts(
    outputs: Float[AnyArray, "*B K D"],
    weights: Float[AnyArray, "*B K"],
    engine: Engine | str,
    key: Array | None = None,
    ranks: Int[AnyArray, "*B K"] | None = None,
) -> Float[Array, "*B D"]:
    """Add the outputs [..., top_k, D] of the chosen experts times their weights [..., top_k]; [..., D].

    Each weighted output is stored as the engine's `elementwise` site says; they are added in order of choice
    in float32 and stored again. With expert parallelism that is done on each rank, `ranks` [..., top_k] being
    those of the experts, and the stored sums of the ranks are added in order, each result stored.

    Reference: vLLM enable_expert_parallel; the all-reduce after the experts.
    Deviation: ranks are added one by one; NCCL and DeepEP choose their own order.
    """
    record = find_engine(engine)
    site = record.elementwise
    scaled = store(multiply(outputs, weights[..., None]), site, site_key(key, "scaled"))
    if record.expert_ranks == 1 or ranks is None:
        return store(_sum_in_order(jnp.moveaxis(scaled, -2, -1)), site, site_key(key, "sum"))
    total = None
    for rank in range(record.expert_ranks):
        own = jnp.where((ranks == rank)[..., None], scaled, 0.0)
        part = store(_sum_in_order(jnp.moveaxis(own, -2, -1)), site, site_key(key, f"rank {rank}"))
        total = part if total is None else store(total + part, site, site_key(key, f"sum {rank}"))
    assert total is not None
    return total


def _sum_in_order(x: Array) -> Array:
    total = x[..., 0]
    for i in range(1, x.shape[-1]):
        total = total + x[..., i]
    return total
