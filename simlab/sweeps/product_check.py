"""Check that the scales of an engine's products can be applied, before a sweep computes anything."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import Array

from simlab.engines import Engine
from simlab.engines.engine import Linear
from simlab.engines.linear import linear, quantize_weights
from simlab.engines.site import FLOAT32_SITE
from simlab.engines.tensor_core import NVFP4TensorCore
from simlab.formats import Scaling
from simlab.models.config import TransformerConfig
from simlab.sweeps.config_reader import FieldError
from simlab.training.recipe import Recipe

ROWS = 256
"""Rows of the operand that is not weights: more terms than a block has, for sums over rows in a gradient."""
Leaves = tuple[jax.ShapeDtypeStruct, ...]
Shape = tuple[int, int]
_TYPES = {bool: "bool", int: "int32", float: "float32"}


def check_products(recipe: Recipe) -> None:
    """Trace every product with weights of both engines on shapes.

    Raises:
        FieldError: For scales that cannot be applied after the sum of a product, with the field and value.
    """
    for side in ("train", "infer"):
        engine = getattr(recipe.engines, side)
        if isinstance(engine, Engine):  # a user's own record may have other products
            _check_engine(side, *_signature(engine), recipe.model)


@lru_cache(maxsize=1024)
def _check_engine(side: str, tree: Any, leaves: Leaves, model: TransformerConfig) -> None:
    engine = jax.tree.unflatten(tree, leaves)
    for field, sites, shape in _list_products(engine, model):
        if not _has_one_scale(sites):
            _check_product(f"engines.{side}.{field}", sites, shape)


def _has_one_scale(sites: Linear) -> bool:
    """Return whether all numbers of an operand share a scale, as in most engines: that fits every product."""
    scalings = [each.scaling for each in (sites.activations, sites.weights, sites.cotangent)]
    is_simple = all(each is None or each.granularity in ("none", "tensor") for each in scalings)
    return is_simple and not isinstance(sites.accumulator, NVFP4TensorCore)


def _list_products(engine: Engine, model: TransformerConfig) -> Iterator[tuple[str, Linear, Shape]]:
    """Yield the field of each product, its sites and the shape of its weights."""
    width, queries = model.hidden_size, model.num_attention_heads * model.head_dim
    first, last = "projection", "projection" if engine.row_parallel is None else "row_parallel"
    yield first, engine.projection, (width, sum(model.heads) * model.head_dim)
    yield last, engine.reduced, (queries, width)
    up, down, inner = engine.projection, engine.reduced, model.intermediate_size
    if model.num_experts:
        inner = model.moe_intermediate_size
        if engine.experts is not None:
            first = last = "experts"
            up = down = engine.experts
        yield "router", engine.router, (width, model.num_experts)
    yield first, up, (width, 2 * inner)
    yield last, down, (inner, width)
    yield "lm_head", engine.lm_head, (width, model.vocab_size)


def _check_product(field: str, sites: Linear, shape: Shape) -> None:
    try:
        _trace(*_signature(sites), shape)
    except ValueError as error:
        # Which operand is at fault shows when the other one is not quantized.
        for name, other in (("weights", "activations"), ("activations", "weights")):
            alone = replace(sites, backward="dequantized", **{other: FLOAT32_SITE})
            try:
                _trace(*_signature(alone), shape)
            except ValueError as own:
                scaling = getattr(sites, name).scaling
                raise FieldError(
                    f"{field}.{name}.scaling", f"must fit the product, got {_describe(scaling)}: {own}."
                ) from error
        both = " and ".join(_describe(each.scaling) for each in (sites.activations, sites.weights))
        raise FieldError(field, f"must have scales that fit each other, got {both}: {error}.") from error


def _describe(scaling: Scaling | None) -> str:
    if scaling is None:
        return "none"
    return f"per {scaling.granularity}" + (f" of {scaling.block}" if scaling.granularity == "block" else "")


def _signature(sites: Engine | Linear) -> tuple[Any, Leaves]:
    leaves, tree = jax.tree.flatten(sites)
    return tree, tuple(
        jax.ShapeDtypeStruct(np.shape(leaf), getattr(leaf, "dtype", None) or _TYPES[type(leaf)])
        for leaf in leaves
    )


@lru_cache(maxsize=4096)
def _trace(tree: Any, leaves: Leaves, shape: Shape) -> None:
    """Trace product and gradient; an engine of the same structure is traced once."""

    def gradient(sites: Linear, x: Array, w: Array) -> tuple[Array, ...]:
        # A key outside the trace would start JAX, with all threads, when arms are only defined.
        key = jax.random.key(0)
        result, pull = jax.vjp(lambda x, w: linear(x, quantize_weights(w, sites, key), sites), x, w)
        return result, *pull(result)

    sites = jax.tree.unflatten(tree, leaves)
    x, w = (jax.ShapeDtypeStruct(each, "float32") for each in ((ROWS, shape[0]), shape))
    jax.eval_shape(gradient, sites, x, w)
