"""Quantization by names or records, checked before anything is computed."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from simlab.core.catalog import lookup
from simlab.core.pytree import Flag
from simlab.formats.catalog import FORMATS
from simlab.formats.format import Format
from simlab.formats.gradients import (
    GRADIENTS,
    Quantized,
    QuantizeSpec,
    elements_through,
    quantize_spec,
    quantize_through,
)
from simlab.formats.rounding_modes import OVERFLOWS, ROUNDINGS, Rounding, StochasticRounding
from simlab.formats.scale_rules import multiply
from simlab.formats.scaling import SCALINGS, Scaling, expand_scale


def quantize(
    x: ArrayLike,
    fmt: str | Format,
    *,
    rounding: str | Rounding | StochasticRounding = "nearest_even",
    overflow: str | Flag = "saturate",
    scaling: str | Scaling | None = None,
    key: Array | None = None,
    gradient: str = "identity",
    cotangent_format: str | Format | None = None,
) -> Float[Array, "..."]:
    """Round x to the nearest numbers of a format (or as `rounding` says), scaled or not; keep float32.

    The gradient is straight-through; scales count as constants.

    Args:
        x: floats of any shape. float32 and narrower types enter exactly; float64 is rounded to float32 first,
            as everywhere in JAX.
        fmt: a name of `FORMATS`, or a record, whose numbers may be traced.
        rounding: a name of `ROUNDINGS`, or a record.
        overflow: a name of `OVERFLOWS`, or a flag.
        scaling: a name of `SCALINGS`, or a record; None scales nothing.
        key: of the random bits; needed by stochastic rounding alone.
        gradient: `identity` passes the cotangent as it is; `clipped` makes it zero where x over its scale
            lies outside the range of the format.
        cotangent_format: rounds the cotangent to nearest even, unscaled, saturating; None leaves it.

    Returns:
        Float32 of x's shape.

    Raises:
        TypeError: for input that is not floating point, and a rounding that is neither a name nor a record.
        ValueError: for unknown names, a scaling for which x has too few axes, and a missing key.

    Example:
        >>> float(quantize(jnp.float32(0.3), "e4m3fn"))
        0.3125

    Reference: acrl Sec. 5; OCP MX v1.0 Sec. 6.3.
    """
    if gradient not in GRADIENTS:
        raise ValueError(f"unknown gradient {gradient!r}; allowed: {', '.join(GRADIENTS)}")
    array, spec = _prepare(x, fmt, rounding, overflow, scaling, key)
    cotangent = None if cotangent_format is None else _format(cotangent_format)
    return quantize_through(gradient, array, spec, cotangent)


def quantize_with_scale(
    x: ArrayLike,
    fmt: str | Format,
    *,
    rounding: str | Rounding | StochasticRounding = "nearest_even",
    overflow: str | Flag = "saturate",
    scaling: str | Scaling | None = None,
    key: Array | None = None,
) -> Quantized:
    """Quantize as `quantize` does, but return the elements on the format's grid and their scales apart.

    `dequantize` of the result equals `quantize` bit for bit. The cotangent of x is that of the elements
    divided by the scale.

    Args:
        x: see `quantize`, as for the other arguments.
        fmt: number format.
        rounding: rounding mode.
        overflow: overflow rule.
        scaling: granularity and rule of the scales.
        key: of stochastic rounding.

    Returns:
        Elements and scales; see `Quantized` for shapes.

    Raises:
        TypeError: as `quantize` does.
        ValueError: as `quantize` does.
    """
    return elements_through(*_prepare(x, fmt, rounding, overflow, scaling, key))


def dequantize(quantized: Quantized, scaling: str | Scaling | None = None) -> Float[Array, "..."]:
    """Multiply elements by their scales.

    Args:
        quantized: from `quantize_with_scale`.
        scaling: the one that the elements were made with.

    Returns:
        Float32 of the shape of the elements.

    Raises:
        ValueError: For an unknown scaling.
    """
    scaling = _scaling(scaling)
    elements, scale, _ = quantized
    return elements if scaling is None else multiply(elements, expand_scale(scale, elements.shape, scaling))


def _prepare(
    x: ArrayLike,
    fmt: str | Format,
    rounding: str | Rounding | StochasticRounding,
    overflow: str | Flag,
    scaling: str | Scaling | None,
    key: Array | None,
) -> tuple[Array, QuantizeSpec]:
    """Return float32 x and the spec of names or records; raise as `quantize` does."""
    fmt, scaling = _format(fmt), _scaling(scaling)
    rounding = lookup(ROUNDINGS, rounding, "rounding") if isinstance(rounding, str) else rounding
    saturate = lookup(OVERFLOWS, overflow, "overflow rule") if isinstance(overflow, str) else overflow
    if not isinstance(rounding, Rounding | StochasticRounding):
        raise TypeError(
            f"rounding must be a record or a name, got {rounding!r}; allowed names: {', '.join(ROUNDINGS)}"
        )
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"quantize takes floating point, not {x.dtype}; "
            "allowed: float32, bfloat16, float16, float8 (exact), float64 (rounded to float32 first)"
        )
    if scaling is not None:
        scaling.scale_shape(x.shape)
    return x.astype(jnp.float32), quantize_spec(fmt, rounding, saturate, scaling, key)


def _format(fmt: str | Format) -> Format:
    if isinstance(fmt, Format):
        return fmt
    return lookup(FORMATS, fmt, "format")


def _scaling(scaling: str | Scaling | None) -> Scaling | None:
    if not isinstance(scaling, Scaling):
        scaling = SCALINGS["none"] if scaling is None else lookup(SCALINGS, scaling, "scaling")
    return None if scaling.granularity == "none" else scaling
