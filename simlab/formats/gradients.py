"""Straight-through gradients: rounding is flat almost everywhere, so its backward pass is declared.

Nothing rounds the cotangent unless a format for it is given.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from simlab.core.pytree import Flag
from simlab.formats.format import Format
from simlab.formats.rounding import Rounding, StochasticRounding, round_to_format
from simlab.formats.scale_rules import divide, multiply
from simlab.formats.scaling import ERRORS, Scaling, expand_scale, find_scale, find_tensor_scale, has_error

GRADIENTS = ("identity", "clipped")


class Recipe(NamedTuple):
    """All that quantizes, as one tree of data; `scaling` None is no scale."""

    fmt: Format
    rounding: Rounding | StochasticRounding
    saturate: Flag
    scaling: Scaling | None
    key: Array | None


class Quantized(NamedTuple):
    """Elements on the grid of their format, float32 of x's shape, and their scales.

    `scale` is float32 of `scaling.scale_shape(x.shape)`, of x's rank: [1, 1] per tensor, [T, 1] per token,
    [1, N] per channel, [T, K / k] for blocks of k, all ones without scaling. A product of matrices works on
    the elements and multiplies by the scales after it has summed what shares them. Where a scale has two
    levels (`e4m3`) it is the product of both, and `tensor_scale`, of the same rank, is the upper one.
    """

    elements: Array
    scale: Array
    tensor_scale: Array | None = None


@jax.jit
def _quantized(x: Array, recipe: Recipe) -> Quantized:
    scaling = recipe.scaling
    upper = None if scaling is None else find_tensor_scale(x, recipe.fmt, scaling)
    scale = jnp.ones((1,) * x.ndim, jnp.float32) if scaling is None else find_scale(x, recipe.fmt, scaling)
    ratio = _ratio(x, scale, scaling)
    elements = round_to_format(ratio, recipe.fmt, recipe.rounding, recipe.saturate, recipe.key)
    if scaling is not None and scaling.errors != ERRORS:
        elements = jnp.where(has_error(ratio, elements, recipe.fmt, scaling.errors), elements, ratio)
    return Quantized(elements, scale, upper)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def quantize_through(gradient: str, x: Array, recipe: Recipe, cotangent_format: Format | None) -> Array:
    """Quantize float32 x; the cotangent of x is that of the result (see `quantize`)."""
    del gradient, cotangent_format
    return _dequantized(x, recipe)


@jax.jit
def _dequantized(x: Array, recipe: Recipe) -> Array:
    elements, scale, _ = _quantized(x, recipe)
    if recipe.scaling is None:
        return elements
    return multiply(elements, expand_scale(scale, x.shape, recipe.scaling))


def _quantize_forward(gradient: str, x: Array, recipe: Recipe, cotangent_format: Format | None):
    inside = _inside(x, recipe) if gradient == "clipped" else None
    return _dequantized(x, recipe), (inside, cotangent_format)


def _quantize_backward(gradient: str, residuals: Any, cotangent: Array):
    del gradient
    inside, cotangent_format = residuals
    if inside is not None:
        cotangent = jnp.where(inside, cotangent, jnp.float32(0))
    if cotangent_format is not None:
        cotangent = round_to_format(cotangent, cotangent_format, "nearest_even", np.bool_(True))
    return cotangent, None, None


quantize_through.defvjp(_quantize_forward, _quantize_backward)


@jax.custom_vjp
def elements_through(x: Array, recipe: Recipe) -> Quantized:
    """Quantize float32 x and keep the scale apart.

    The cotangent of x is that of the elements over the scale, so that elements times scale passes it on;
    the scale is a constant to it.
    """
    return _quantized(x, recipe)


def _elements_forward(x: Array, recipe: Recipe):
    quantized = _quantized(x, recipe)
    return quantized, (quantized.scale, recipe.scaling)


def _elements_backward(residuals: Any, cotangent: Quantized):
    scale, scaling = residuals
    return _ratio(cotangent.elements, scale, scaling), None


elements_through.defvjp(_elements_forward, _elements_backward)


def _ratio(x: Array, scale: Array, scaling: Scaling | None) -> Array:
    return x if scaling is None else divide(x, expand_scale(scale, x.shape, scaling))


@jax.jit
def _inside(x: Array, recipe: Recipe) -> Array:
    """Where x over its scale is within the range of the format; NaN counts as inside."""
    scaling = recipe.scaling
    ratio = x if scaling is None else _ratio(x, find_scale(x, recipe.fmt, scaling), scaling)
    return ~((ratio > recipe.fmt.max_finite) | (ratio < recipe.fmt.min_finite))
