"""Straight-through gradients: rounding is flat almost everywhere, so its backward pass is declared.

Nothing rounds the cotangent unless a format for it is given.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from simlab.core.arrays import AnyArray
from simlab.core.pytree import Flag
from simlab.formats.bit_constants import is_on_host, prepare_format
from simlab.formats.format import Format
from simlab.formats.rounding import round_array, round_to_format
from simlab.formats.rounding_modes import Rounding, StochasticRounding
from simlab.formats.scale_rules import divide, multiply
from simlab.formats.scaling import ERRORS, Scaling, expand_scale, find_scale, find_tensor_scale, has_error

GRADIENTS = ("identity", "clipped")


class QuantizeSpec(NamedTuple):
    """Records and key that one quantization reads, as one tree; `scaling` None means without scales."""

    fmt: Format
    rounding: Rounding | StochasticRounding
    saturate: Flag
    scaling: Scaling | None
    key: Array | None


def quantize_spec(
    fmt: Format,
    rounding: Rounding | StochasticRounding,
    saturate: Flag,
    scaling: Scaling | None,
    key: Array | None = None,
) -> QuantizeSpec:
    """Return the spec of these records, its format prepared if its numbers are known.

    Raises:
        ValueError: If stochastic rounding has no key.
    """
    if isinstance(rounding, StochasticRounding) and key is None:
        raise ValueError("stochastic rounding needs key=; allowed: a key such as jax.random.key(0)")
    # Functions with a gradient of their own, which read the spec, trace every number.
    if is_on_host(fmt, rounding, saturate):
        fmt = prepare_format(fmt, rounding, saturate)
    return QuantizeSpec(fmt, rounding, saturate, scaling, key)


class Quantized(NamedTuple):
    """Elements on the grid of their format, float32 of x's shape, and their scales.

    `scale` is float32 of `scaling.scale_shape(x.shape)`, of x's rank: [1, 1] per tensor, [T, 1] per token,
    [1, N] per channel, [T, K / k] for blocks of k, all ones without scaling. A product of matrices works on
    the elements and multiplies by the scales after it has summed what shares them. Where a scale has two
    levels (`e4m3`) it is the product of both, and `tensor_scale`, of the same rank, is the upper one.
    """

    elements: Float[Array, "*S"]
    scale: Float[Array, "*C"]
    tensor_scale: Float[Array, "*C"] | None = None


@jax.jit
def quantize_elements(x: Float[AnyArray, "*S"], spec: QuantizeSpec) -> Quantized:
    """Quantize float32 x and keep the scale apart; not differentiable, see `elements_through`."""
    scaling, numbers = spec.scaling, (spec.fmt, spec.rounding, spec.saturate, spec.key)
    if scaling is None:
        return Quantized(round_array(x, *numbers), jnp.ones((1,) * x.ndim, jnp.float32))
    upper, scale = find_tensor_scale(x, spec.fmt, scaling), find_scale(x, spec.fmt, scaling)
    ratio = _ratio(x, scale, scaling)
    elements = round_array(ratio, *numbers)
    if scaling.errors != ERRORS:
        elements = jnp.where(has_error(ratio, elements, spec.fmt, scaling.errors), elements, ratio)
    return Quantized(elements, scale, upper)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def quantize_through(
    gradient: str, x: Float[AnyArray, "*S"], spec: QuantizeSpec, cotangent_format: Format | None
) -> Float[Array, "*S"]:
    """Quantize float32 x of any shape; the cotangent of x is that of the result, as `quantize` says."""
    del gradient, cotangent_format
    return _dequantize(x, spec)


@jax.jit
def _dequantize(x: Array, spec: QuantizeSpec) -> Array:
    if spec.scaling is None:
        return round_array(x, spec.fmt, spec.rounding, spec.saturate, spec.key)
    elements, scale, _ = quantize_elements(x, spec)
    return multiply(elements, expand_scale(scale, x.shape, spec.scaling))


def _quantize_forward(gradient: str, x: Array, spec: QuantizeSpec, cotangent_format: Format | None):
    inside = _inside(x, spec) if gradient == "clipped" else None
    return _dequantize(x, spec), (inside, cotangent_format)


def _quantize_backward(gradient: str, residuals: tuple[Array | None, Format | None], cotangent: Array):
    del gradient
    inside, cotangent_format = residuals
    if inside is not None:
        cotangent = jnp.where(inside, cotangent, jnp.float32(0))
    if cotangent_format is not None:
        cotangent = round_to_format(cotangent, cotangent_format, "nearest_even", np.bool_(True))
    return cotangent, None, None


quantize_through.defvjp(_quantize_forward, _quantize_backward)


def _elements_forward(x: Array, spec: QuantizeSpec):
    quantized = quantize_elements(x, spec)
    return quantized, (quantized.scale, spec.scaling)


def _elements_backward(residuals: tuple[Array, Scaling | None], cotangent: Quantized):
    scale, scaling = residuals
    return _ratio(cotangent.elements, scale, scaling), None


_elements_with_gradient = jax.custom_vjp(quantize_elements)
_elements_with_gradient.defvjp(_elements_forward, _elements_backward)
elements_through: Callable[[Array, QuantizeSpec], Quantized] = _elements_with_gradient
"""Quantize as `quantize_elements` does, with a straight-through gradient.

The cotangent of x is that of the elements over the scale, so that elements times scale passes it on; the
scale is a constant to it.
"""


def _ratio(x: Array, scale: Array, scaling: Scaling | None) -> Array:
    return x if scaling is None else divide(x, expand_scale(scale, x.shape, scaling))


@jax.jit
def _inside(x: Array, spec: QuantizeSpec) -> Array:
    """Return where x over its scale is within the range of the format; NaN counts as inside."""
    scaling = spec.scaling
    ratio = x if scaling is None else _ratio(x, find_scale(x, spec.fmt, scaling), scaling)
    return ~((ratio > spec.fmt.max_finite) | (ratio < spec.fmt.min_finite))
