"""A matrix product with weights as an engine does it: quantize both sides, multiply, scale, round."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.engines.accumulate import blocks_of, float32_dot
from simlab.engines.catalog import find_engine
from simlab.engines.engine import Engine, Linear
from simlab.engines.materialize_once import materialize_once
from simlab.engines.matmul import check_operands
from simlab.engines.site import FLOAT32_SITE, Site, site_key, store
from simlab.engines.tensor_core import NVFP4TensorCore
from simlab.formats import FORMATS, Quantized, Scaling, dequantize, expand_scale
from simlab.formats.gradients import elements_through
from simlab.formats.rounding import round_to_format
from simlab.formats.scale_rules import divide, multiply


class WithOriginal(NamedTuple):
    """Weights as the forward pass multiplies them, and as they were, for the backward pass."""

    quantized: Quantized
    original: Array


# Weights as an engine holds them.
HeldWeights = Quantized | WithOriginal


def linear(
    x: Array | Quantized,
    w: Array | Quantized | WithOriginal,
    engine: Engine | Linear | str,
    key: Array | None = None,
) -> Array:
    """Multiply x by w as the engine's `projection` does.

    x and w are quantized to their sites and their elements multiplied with the accumulator. Scales come
    after the sum, as in real FP8 kernels: that of the column, then that of the row; block scales multiply
    the sum of their block, and blocks are added in float32, from left to right. Scales that are powers of
    two (e8m0) multiply the elements instead, which gives the same number. An NVFP4 accumulator takes the
    E4M3 scales of blocks with the elements, and the scales of the tensors multiply its result. The result
    is rounded to `output`.

    The gradient is straight-through: that of the float32 product of the quantized operands, or as
    `Linear.backward` says.

    Args:
        x: float32 [..., T, K], or [K]; or quantized by `quantize_operand`, once for several products.
        w: float32 [K, N]; or quantized by `quantize_weights`, once per rollout.
        engine: an engine, its name, or one `Linear` of it, such as `engine.lm_head`.
        key: of the random bits; needed where a site rounds stochastically.

    Returns:
        Float32 [..., T, N], or [N].

    Raises:
        ValueError: for scales that cannot be applied after the sum, shapes that do not match, and operands
            without the original that the backward pass needs.

    Example:
        >>> linear(jnp.array([2.1]), jnp.array([[1.0]]), "bf16").tolist()
        [2.09375]

    Reference: acrl Sec. 5; vLLM cutlass_scaled_mm; DeepSeek-V3 Sec. 3.3.
    """
    sites = engine if isinstance(engine, Linear) else find_engine(engine).projection
    original, site = x, sites.activations
    if not isinstance(x, Quantized):
        # Not through `quantize_operand`: from the config to the rounding there are at most 8 calls.
        spec = None if site.format is None else site.spec(site_key(key, "x"))
        x = as_quantized(x) if spec is None else elements_through(materialize_once(x, site), spec)
    if not isinstance(w, Quantized | WithOriginal):
        w = quantize_weights(w, sites, site_key(key, "w"))
    quantized = w.quantized if isinstance(w, WithOriginal) else w
    check_operands(x.elements, quantized.elements)
    if sites.backward == "dequantized":
        result = multiply_scaled(_as_rows(x), quantized, sites)
    elif isinstance(original, Quantized) or not isinstance(w, WithOriginal):
        raise ValueError(
            f"backward {sites.backward!r} needs x as it was, and w from quantize_weights; got "
            f"{type(original).__name__} and {type(w).__name__}"
        )
    else:
        rows = original.reshape(-1, original.shape[-1])
        result = product_with_backward(rows, w.original, _as_rows(x), quantized, sites)
    result = result.reshape(*x.elements.shape[:-1], quantized.elements.shape[1])
    return materialize_once(store(result, sites.output, site_key(key, "output")), sites.output)


def quantize_weights(w: Float[AnyArray, "K N"], sites: Linear, key: Array | None = None) -> HeldWeights:
    """Quantize float32 w [K, N] once for many products, as `linear` does at `sites`."""
    if sites.dequantized is None:
        quantized = quantize_operand(w, sites.weights, key)
    else:
        quantized = quantize_operand(store(store(w, sites.weights, key), sites.dequantized), FLOAT32_SITE)
    return quantized if sites.backward == "dequantized" else WithOriginal(quantized, w)


def quantize_operand(x: Float[AnyArray, "*S"], site: Site, key: Array | None = None) -> Quantized:
    """Quantize float32 x [..., T, K], or w [K, N], to a site for `linear`: elements and scale apart."""
    if site.format is None:
        return as_quantized(x)
    return elements_through(materialize_once(x, site), site.spec(key))


def as_quantized(x: Float[AnyArray, "*S"]) -> Quantized:
    """Return float32 x as the operand of a site that rounds nothing."""
    return Quantized(x, jnp.ones((1,) * x.ndim, jnp.float32))


@jax.custom_jvp
@jax.jit
def multiply_scaled(x: Quantized, w: Quantized, sites: Linear) -> Float[Array, "M N"]:
    """Multiply quantized x [M, K] by quantized w [K, N] and apply the scales: float32 [M, N], unrounded.

    To its derivatives it is the float32 product of the quantized operands, their scales being constants.
    """
    if isinstance(sites.accumulator, NVFP4TensorCore):
        return _nvfp4_product(x, w, sites)
    rows = _take_remaining_scale(x, sites.activations.scaling, along=1)
    columns = _take_remaining_scale(w, _weight_scaling(sites), along=0)
    block = _common_block(rows.block, columns.block)
    if block is None:
        sums = sites.accumulator.dot(rows.elements, columns.elements)
        # The guard of `multiply` against contraction with a later sum is not needed before a rounding.
        times = multiply if sites.output.format is None else jnp.multiply
        return _apply(times, sums, rows.scale, columns.scale)
    x_blocks = blocks_of(rows.elements.T, block).transpose(0, 2, 1)
    x_scales, w_scales = _per_block(rows, 1, len(x_blocks)), _per_block(columns, 0, len(x_blocks))

    def add_block(total: Array, operands: tuple[Array, ...]) -> tuple[Array, None]:
        a, b, row_scale, column_scale = operands
        return total + _apply(multiply, sites.accumulator.dot(a, b), row_scale, column_scale), None

    zeros = jnp.zeros((x.elements.shape[0], w.elements.shape[1]), jnp.float32)
    return lax.scan(add_block, zeros, (x_blocks, blocks_of(columns.elements, block), x_scales, w_scales))[0]


@multiply_scaled.defjvp
def _multiply_scaled_jvp(primals, tangents):
    x, w, sites = primals
    x_dot, w_dot, _ = tangents
    x_scaling, w_scaling = sites.activations.scaling, _weight_scaling(sites)
    tangent = float32_dot(_tangent(x_dot, x, x_scaling), dequantize(w, w_scaling))
    tangent += float32_dot(dequantize(x, x_scaling), _tangent(w_dot, w, w_scaling))
    return multiply_scaled(x, w, sites), tangent


@jax.custom_vjp
def product_with_backward(
    x: Float[AnyArray, "M K"],
    w: Float[AnyArray, "K N"],
    quantized_x: Quantized,
    quantized_w: Quantized,
    sites: Linear,
):
    """Multiply the quantized operands; the cotangents go to x [M, K] and w [K, N] as they were."""
    del x, w
    return multiply_scaled(quantized_x, quantized_w, sites)


def _product_forward(x: Array, w: Array, quantized_x: Quantized, quantized_w: Quantized, sites: Linear):
    return multiply_scaled(quantized_x, quantized_w, sites), (x, w, sites)


def _product_backward(residuals: tuple[Array, Array, Linear], cotangent: Array):
    x, w, sites = residuals
    if sites.backward == "high_precision":
        gradients = float32_dot(cotangent, w.T), float32_dot(x.T, cotangent)
    else:
        gradients = _quantize_gradients(x, w, cotangent, sites)
    return (*gradients, None, None, None)


product_with_backward.defvjp(_product_forward, _product_backward)


def _quantize_gradients(x: Array, w: Array, cotangent: Array, sites: Linear) -> tuple[Array, Array]:
    """Return g w' [M, K] and x' g [K, N], each product as the forward pass makes it.

    The left operand is scaled as activations, the right one as weights, along the terms of its own sum.
    """
    to_x = replace(sites, activations=sites.cotangent)
    to_w = replace(sites, weights=replace(sites.cotangent, scaling=sites.weights.scaling))

    def product_of(left: Array, right: Array, sites: Linear) -> Array:
        operands = quantize_operand(left, sites.activations), quantize_operand(right, sites.weights)
        return multiply_scaled(*operands, sites)

    return product_of(cotangent, w.T, to_x), product_of(x.T, cotangent, to_w)


def _weight_scaling(sites: Linear) -> Scaling | None:
    """Return the scaling of weights as they are multiplied."""
    return sites.weights.scaling if sites.dequantized is None else None


def _tangent(direction: Quantized, at: Quantized, scaling: Scaling | None) -> Array:
    """Multiply the tangent of elements by their scales: linear, unlike `dequantize`, which flushes."""
    if scaling is None or scaling.granularity == "none":
        return direction.elements
    return direction.elements * expand_scale(at.scale, at.elements.shape, scaling)


def _nvfp4_product(x: Quantized, w: Quantized, sites: Linear) -> Array:
    """Multiply as the tensor core does, then by the product of both tensors' scales, CUTLASS's alpha."""
    x_upper, w_upper = x.tensor_scale, w.tensor_scale
    if x_upper is None or w_upper is None or x_upper.size * w_upper.size != 1:
        raise ValueError("NVFP4TensorCore needs two levels of scales, one upper one a side; allowed: nvfp4")
    rows = _with_block_scales(x, x_upper, sites.activations.scaling)
    columns = _with_block_scales(w, w_upper, sites.weights.scaling)
    times = multiply if sites.output.format is None else jnp.multiply
    return times(sites.accumulator.dot(rows, columns), x_upper * w_upper)


def _with_block_scales(side: Quantized, upper: Array, scaling: Scaling | None) -> Array:
    """Multiply elements by the E4M3 scales of their blocks alone, which the product with `upper` rounded."""
    level = round_to_format(divide(side.scale, upper), FORMATS["e4m3fn"], "nearest_even")
    return dequantize(side._replace(scale=level), scaling)


class _Scaled(NamedTuple):
    """One side of a product: elements, scales [M, n] or [n, N], and how many terms share one (None: all)."""

    elements: Array
    scale: Array | None
    block: int | None


def _take_remaining_scale(side: Quantized, scaling: Scaling | None, along: int) -> _Scaled:
    """Return the side with the part of its scale that is left to apply after the sum over axis `along`."""
    if scaling is None or scaling.granularity == "none":
        return _Scaled(side.elements, None, None)
    if scaling.scale_format == "e8m0":
        return _Scaled(dequantize(side, scaling), None, None)
    shape = side.elements.shape
    block = scaling.block_shape(shape)
    other = 1 - along
    scale = jnp.repeat(side.scale, block[other], axis=other) if block[other] > 1 else side.scale
    scale = lax.slice_in_dim(scale, 0, shape[other], axis=other)
    if block[along] >= shape[along]:
        return _Scaled(side.elements, scale, None)
    if scaling.granularity != "block" or block[along] == 1:
        raise ValueError(
            f"scaling per {scaling.granularity} varies along the {shape[along]} terms of the sum; allowed: "
            "none, tensor, token (activations), channel (weights), block along the terms"
        )
    return _Scaled(side.elements, scale, block[along])


def _common_block(x_block: int | None, w_block: int | None) -> int | None:
    if x_block is not None and w_block is not None and x_block != w_block:
        raise ValueError(f"blocks of {x_block} and {w_block} terms; allowed: the same size on both sides")
    return x_block if w_block is None else w_block


def _apply(
    times: Callable[[Array, Array], Array], result: Array, row_scale: Array | None, column_scale: Array | None
) -> Array:
    """Multiply [M, N] by the scale of its column, then by that of its row."""
    for scale in (column_scale, row_scale):
        if scale is not None:
            result = times(result, scale)
    return result


def _per_block(side: _Scaled, along: int, blocks: int) -> Array:
    """Return scales [blocks, M, 1] or [blocks, 1, N]; one for all blocks is repeated."""
    assert side.scale is not None or side.block is None
    scale = jnp.ones((1, 1), jnp.float32) if side.scale is None else side.scale
    other = scale.shape[1 - along]
    scale = jnp.broadcast_to(scale, (blocks, other) if along == 0 else (other, blocks))
    return scale[:, None, :] if along == 0 else scale.T[:, :, None]


def _as_rows(x: Quantized) -> Quantized:
    """Flatten the leading axes of elements [..., K] and scale into one."""
    one_scale = all(n == 1 for n in x.scale.shape[:-1])
    rows = 1 if one_scale else -1
    upper = x.tensor_scale
    return Quantized(
        x.elements.reshape(-1, x.elements.shape[-1]),
        x.scale.reshape(rows, x.scale.shape[-1]),
        None if upper is None else upper.reshape(-1, upper.shape[-1]),
    )
