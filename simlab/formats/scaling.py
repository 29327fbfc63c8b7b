"""Scaling: which numbers share a scale, and how the scale follows from them.

Float32 subnormals do not exist here: an input or a result below 2^-126 in magnitude counts as a zero of its
sign, and no scale is smaller. CPUs and TPUs flush them anyway, and saying it makes GPUs agree.
"""

import math

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Bool, Float

from simlab.core.arrays import AnyArray
from simlab.core.pytree import pytree, static
from simlab.formats import scale_rules
from simlab.formats.format import Format
from simlab.formats.rounding import round_to_format

GRANULARITIES = ("none", "tensor", "token", "channel", "block")
SCALE_FORMATS = ("float32", "e8m0", "e4m3")
# What rounding x over its scale does to an element: at most one of the three.
ERRORS = ("saturation", "dead zone", "grid")
FOUR_OVER_SIX = "four_over_six"
# The largest block scale under four over six if amax goes to 6. If it goes to 4, the scale is 1.5 times as
# large: 384, still an E4M3 number.
FOUR_OVER_SIX_LEVEL = 256.0


@pytree
class Scaling:
    """The elements that share a scale (`granularity`), its format, and the rule that chooses it.

    x is divided by its scale, rounded to the grid of the element format, and multiplied by the scale again.
    A scale belongs to a block of x; `granularity` names the shape of the block:

    - `none`: no scale.
    - `tensor`: all of x.
    - `token`: all of the last axis: one scale per row of activations `x[..., T, K]`.
    - `channel`: all of the axis before the last: one scale per output channel of weights `w[..., K, N]`.
    - `block`: `block` elements along `axis` (activations -1, weights `w[..., K, N]` -2), or a tuple of
      sizes for the last axes, such as `(128, 128)`. The last block of an axis may be short.

    The element format is not part of it: the largest magnitude of a block (amax) goes to the largest
    finite value of the requested format. `scale_format`:

    - `float32`: amax / max_finite, but at least `min_scale`.
    - `e8m0`: a power of two, 2^-126 to 2^127, by `rule`: `floor` 2^(floor(log2 amax) - emax) as OCP has
      it; `ceil` the same with ceil(log2 amax); `rceil` 2^ceil(log2(amax / max_finite)) as NVIDIA has it;
      `even` as floor, after amax is rounded (ties up) to the element's number of mantissa bits.
    - `e4m3`: two levels: a float32 scale of the tensor, amax / (448 max_finite), times an E4M3 scale per
      block, rounded to nearest even, at least 2^-9. By the `rule` `four_over_six` amax of a block goes to
      max_finite or to two thirds of it (E2M1: 6 or 4), whichever has the smaller squared error, and 256
      stands for 448.

    A block of zeros has scale 1. A block with an infinity or NaN has scale NaN and is NaN throughout.

    `given` replaces the scale found from amax (for `e4m3`: the scale of the tensor); it is taken as it is,
    positive and normal, and must broadcast to the shape of the scale. It is the only field that is data.

    `errors` names the errors that are made; an element with another one stays x over its scale. The errors
    exclude each other, so they add up: `saturation` beyond the largest value, which power-of-two scales
    cause; `dead zone`, what becomes zero; `grid`, all else.

    Raises:
        ValueError: For an unknown name, or a block size that is not a positive integer.

    Reference: OCP MX v1.0 Sec. 6.3; torchao ScaleCalculationMode; NVIDIA cuBLAS 1D block scaling;
      acrl Sec. 5; vLLM dynamic_per_token_scaled_fp8_quant; Four Over Six arXiv 2512.02010; MXFP4 errors
      arXiv 2605.20402.
    Deviation: e8m0 scales stop at 2^-126, not 2^-127, which float32 arithmetic flushes (so does torchao);
      x is divided by its scale where GPU kernels often multiply by the rounded reciprocal; the split into
      errors is ours, after the three that arXiv 2605.20402 names, whose formula was not read.
    """

    granularity: str = static()
    block: int | tuple[int, ...] | None = static(default=None)
    axis: int = static(default=-1)
    scale_format: str = static(default="float32")
    rule: str = static(default="floor")
    min_scale: float = static(default=0.0)
    errors: tuple[str, ...] = static(default=ERRORS)
    given: ArrayLike | None = None

    def __post_init__(self):
        """Reject what has no meaning; `given` may be a tracer and is not checked."""
        _require(self.granularity, GRANULARITIES, "granularity")
        _require(self.scale_format, SCALE_FORMATS, "scale_format")
        _require(self.rule, (*scale_rules.E8M0_RULES, FOUR_OVER_SIX), "rule")
        if (self.rule == FOUR_OVER_SIX) > (self.scale_format == "e4m3"):
            raise ValueError(
                f"scale_format must be 'e4m3' for the rule {self.rule!r}, got {self.scale_format!r}."
            )
        for error in self.errors:
            _require(error, ERRORS, "each of errors")
        if self.granularity == "block":
            sizes = self.block if isinstance(self.block, tuple) else (self.block,)
            if not sizes or not all(_is_size(size) for size in sizes):
                raise ValueError(f"block must be an integer >= 1 or a tuple of them, got {self.block!r}.")
        elif self.block is not None:
            raise ValueError(
                f"granularity must be 'block' for a block of {self.block!r}, got {self.granularity!r}."
            )
        if not (isinstance(self.min_scale, int | float) and 0.0 <= self.min_scale < math.inf):
            raise ValueError(f"min_scale must be a finite number >= 0, got {self.min_scale!r}.")

    def block_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a block of an array of `shape`: one size per axis.

        Raises:
            ValueError: If the array has too few axes.
        """
        extents = tuple(max(n, 1) for n in shape)
        sizes = [1] * len(shape)
        for axis, size in self._sizes_by_axis(len(shape)):
            if not -len(shape) <= axis < len(shape):
                raise ValueError(
                    f"granularity must be one of none, tensor{', token, block' if shape else ''} for x of "
                    f"shape {shape}, got {self.granularity} along axis {axis}."
                )
            sizes[axis] = extents[axis] if size is None else min(size, extents[axis])
        return tuple(sizes)

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the scale of an array of `shape`: per axis the number of blocks.

        The rank stays: x[8, 100] has scales [1, 1] per tensor, [8, 1] per token, [1, 100] per channel,
        [8, 4] for blocks of 32.
        """
        return tuple(-(-n // size) for n, size in zip(shape, self.block_shape(shape), strict=True))

    def _sizes_by_axis(self, ndim: int) -> list[tuple[int, int | None]]:
        """List (axis, size) of the axes that a block extends over; size None is all of the axis."""
        if isinstance(self.block, tuple):
            return [(axis, size) for axis, size in zip(range(-len(self.block), 0), self.block, strict=True)]
        return {
            "none": [],
            "tensor": [(axis, None) for axis in range(ndim)],
            "token": [(-1, None)],
            "channel": [(-2, None)],
            "block": [(self.axis, self.block)],
        }[self.granularity]


def find_scale(x: Float[AnyArray, "*S"], fmt: Format, scaling: Scaling) -> Float[Array, "*C"]:
    """Return the scales of x: float32 of `scaling.scale_shape(x.shape)`.

    Args:
        x: float32 of any shape.
        fmt: format of the elements; its numbers may be traced.
        scaling: granularity and rule.

    Raises:
        ValueError: If a given scale does not broadcast to the shape of the scales, or x has too few axes.
    """
    shape = scaling.scale_shape(x.shape)
    if scaling.given is not None and scaling.scale_format != "e4m3":
        return _fit_scale(scaling.given, shape)
    amax = block_amax(x, scaling.block_shape(x.shape))
    if scaling.scale_format == "float32":
        scale = scale_rules.float32_scale(amax, fmt, scaling.min_scale)
    elif scaling.scale_format == "e8m0":
        scale = scale_rules.e8m0_scale(amax, fmt, scaling.rule)
    else:
        scale = _two_level_scale(x, amax, fmt, scaling)
    scale = jnp.where(amax < scale_rules.SMALLEST_NORMAL, jnp.float32(1), scale)
    return jnp.where(jnp.isfinite(amax) & jnp.isfinite(scale), scale, jnp.float32(jnp.nan))


def _two_level_scale(x: Array, amax: Array, fmt: Format, scaling: Scaling) -> Array:
    upper, most = _upper_scale(amax, fmt, scaling), scale_rules.max_finite(fmt)
    six = scale_rules.two_level_scale(amax, most, upper)
    if scaling.rule != FOUR_OVER_SIX:
        return six
    four = scale_rules.two_level_scale(amax, scale_rules.divide(most, jnp.float32(1.5)), upper)
    better = _sum_squared_error(x, four, fmt, scaling) < _sum_squared_error(x, six, fmt, scaling)
    return jnp.where(better, four, six)


def _sum_squared_error(x: Array, scale: Array, fmt: Format, scaling: Scaling) -> Array:
    """Return the squared error of each block under `scale`, to nearest even; of the shape of `scale`."""
    expanded = expand_scale(scale, x.shape, scaling)
    elements = round_to_format(scale_rules.divide(x, expanded), fmt, "nearest_even")
    error = scale_rules.multiply(elements, expanded) - x
    blocks = _blocks_of(scale_rules.multiply(error, error), scaling.block_shape(x.shape))
    within = tuple(range(1, blocks.ndim, 2))
    flat = jnp.moveaxis(blocks, within, range(-len(within), 0)).reshape(*scale.shape, -1)
    return scale_rules.pairwise_sum(flat)


def has_error(
    ratio: Float[AnyArray, "*S"], elements: Float[AnyArray, "*S"], fmt: Format, errors: tuple[str, ...]
) -> Bool[Array, "*S"]:
    """Return where rounding `ratio`, x over its scale, to `elements` makes one of `errors`."""
    saturated = (ratio > fmt.max_finite) | (ratio < fmt.min_finite)
    kinds = zip(ERRORS, (saturated, elements == 0, ~saturated & (elements != 0)), strict=True)
    is_error = jnp.zeros(ratio.shape, bool)
    for error, made in kinds:
        is_error = is_error | made if error in errors else is_error
    return is_error


def find_tensor_scale(x: Float[AnyArray, "*S"], fmt: Format, scaling: Scaling) -> Float[Array, "*C"] | None:
    """Return the upper level of two, float32 of x's rank with one number per tensor; None for one level.

    Raises:
        ValueError: If a given scale does not broadcast to the shape of the scales.
    """
    if scaling.scale_format != "e4m3":
        return None
    return _upper_scale(block_amax(x, scaling.block_shape(x.shape)), fmt, scaling)


def _upper_scale(amax: Array, fmt: Format, scaling: Scaling) -> Array:
    if scaling.given is None:
        level = FOUR_OVER_SIX_LEVEL if scaling.rule == FOUR_OVER_SIX else 448.0
        return scale_rules.tensor_scale(amax, fmt, level)
    scale = jnp.asarray(scaling.given, jnp.float32)
    _fit_scale(scale, amax.shape)
    return scale.reshape((1,) * (amax.ndim - scale.ndim) + scale.shape)


def block_amax(x: Float[AnyArray, "*S"], block: tuple[int, ...]) -> Float[Array, "*C"]:
    """Return the largest magnitude of each block of float32 x; NaN where a block has one."""
    blocks = _blocks_of(x, block)
    return scale_rules.largest_magnitude(blocks, tuple(range(1, blocks.ndim, 2)))


def _blocks_of(x: Array, block: tuple[int, ...]) -> Array:
    """View x padded with zeros as [blocks, size] for each axis."""
    missing = [(0, -n % size, 0) for n, size in zip(x.shape, block, strict=True)]
    padded = lax.pad(x, jnp.float32(0), missing)
    counts = tuple(n // size for n, size in zip(padded.shape, block, strict=True))
    return padded.reshape(_interleave(counts, block))


def expand_scale(
    scale: Float[AnyArray, "*C"], shape: tuple[int, ...], scaling: Scaling
) -> Float[Array, "*S"]:
    """Repeat each scale over its block: from `scaling.scale_shape(shape)` to `shape`."""
    block, counts = scaling.block_shape(shape), scale.shape
    single = scale.reshape(_interleave(counts, (1,) * len(block)))
    repeated = jnp.broadcast_to(single, _interleave(counts, block))
    padded = repeated.reshape(tuple(count * size for count, size in zip(counts, block, strict=True)))
    return padded[tuple(slice(n) for n in shape)]


def _interleave(counts: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(number for pair in zip(counts, sizes, strict=True) for number in pair)


def _fit_scale(value: ArrayLike, shape: tuple[int, ...]) -> Array:
    scale = jnp.asarray(value, jnp.float32)
    scale = scale.reshape((1,) * (len(shape) - scale.ndim) + scale.shape)
    if scale.ndim != len(shape) or any(m not in (1, n) for m, n in zip(scale.shape, shape, strict=True)):
        raise ValueError(f"given must have a shape that broadcasts to {shape}, got {jnp.shape(value)}.")
    return jnp.broadcast_to(scale, shape)


def _require(value: object, allowed: tuple[str, ...], kind: str) -> None:
    if value not in allowed:
        raise ValueError(f"{kind} must be one of {', '.join(allowed)}, got {value!r}.")


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 1


# Names say whose recipe it is. Element formats are chosen apart: mxfp8 goes with e4m3fn or e5m2, mxfp6 with
# e2m3 or e3m2, mxfp4 and nvfp4 with e2m1, the FP8 ones with e4m3fn, the int8 ones with int8.
SCALINGS: dict[str, Scaling] = {
    "none": Scaling("none"),
    "per-tensor": Scaling("tensor"),
    "per-token": Scaling("token"),
    "per-channel": Scaling("channel"),
    "mxfp8": Scaling("block", block=32, scale_format="e8m0"),
    "mxfp8-rceil": Scaling("block", block=32, scale_format="e8m0", rule="rceil"),
    "mxfp6": Scaling("block", block=32, scale_format="e8m0"),
    "mxfp4": Scaling("block", block=32, scale_format="e8m0"),
    "nvfp4": Scaling("block", block=16, scale_format="e4m3"),
    "nvfp4-four-over-six": Scaling("block", block=16, scale_format="e4m3", rule=FOUR_OVER_SIX),
    "int4-g128": Scaling("block", block=128),
    "int4-g32": Scaling("block", block=32),
    "deepseek-1x128": Scaling("block", block=128),
    "deepseek-128x128": Scaling("block", block=(128, 128)),
    # vLLM keeps dynamic per-token scales above 1 / (448 * 512).
    "fp8-per-token": Scaling("token", min_scale=1.0 / (448 * 512)),
    "fp8-per-channel": Scaling("channel"),
    "int8-per-token": Scaling("token"),
    "int8-per-channel": Scaling("channel"),
}
"""Presets by the name of the recipe; for weights, `dataclasses.replace(SCALINGS["mxfp8"], axis=-2)`."""
