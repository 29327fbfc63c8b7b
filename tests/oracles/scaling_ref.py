"""Scaling written to be read: one block after the other, numpy scalars, exact logarithms.

`scaling` must equal it bit for bit. Scales and quotients are single IEEE float32 operations, so numpy's
float32 scalars state them; exponents come from `math.frexp` of Python floats, which hold float32 exactly.
"""

import itertools
import math
from typing import Any

import numpy as np

from simlab.formats.catalog import FORMATS
from simlab.formats.format import Format
from simlab.formats.scaling import Scaling
from tests.oracles.rounding_ref import round_ref

SMALLEST_NORMAL = np.float32(2.0**-126)


def quantize_ref(
    x: np.ndarray, fmt: Format, scaling: Scaling, rounding: str = "nearest_even", overflow: str = "saturate"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (result, elements, scales): float32 arrays of x's shape, the scale repeated for each element."""
    x = np.asarray(x, np.float32)
    result, elements, scales = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    tensor_amax = _amax(list(x.flat))
    given_scales = (
        None if scaling.given is None else np.broadcast_to(scaling.given, scaling.scale_shape(x.shape))
    )
    with np.errstate(all="ignore"):
        for number, members in _blocks(x.shape, scaling).items():
            amax = _amax([x[i] for i in members])
            given_scale = None if given_scales is None else np.float32(given_scales[number])
            scale = scale_ref(amax, tensor_amax, fmt, scaling, given_scale)
            if scaling.rule == "four_over_six" and np.isfinite(scale) and amax >= SMALLEST_NORMAL:
                values = [x[i] for i in members]
                four = scale_ref(
                    amax, tensor_amax, fmt, scaling, given_scale, np.float32(fmt.max_finite) / np.float32(1.5)
                )
                if squared_error_ref(values, four, fmt) < squared_error_ref(values, scale, fmt):
                    scale = four
            for i in members:
                scales[i] = scale
                ratio = _flush(_flush(x[i]) / scale)
                elements[i] = round_ref(float(ratio), fmt, rounding, overflow)
                if error_ref(ratio, elements[i], fmt) not in scaling.errors:
                    elements[i] = ratio
                result[i] = _flush(elements[i] * scale)
    return result, elements, scales


def scale_ref(
    amax: np.float32,
    tensor_amax: np.float32,
    fmt: Format,
    scaling: Scaling,
    given_scale: np.float32 | None,
    target: np.float32 | None = None,
) -> np.float32:
    """Return the scale of one block, of two levels the one that sends amax to `target`."""
    two_levels = scaling.scale_format == "e4m3"
    if given_scale is not None and not two_levels:
        return given_scale
    if not np.isfinite(amax) or (two_levels and given_scale is None and not np.isfinite(tensor_amax)):
        return np.float32(np.nan)
    if amax < SMALLEST_NORMAL:
        return np.float32(1)
    max_finite = np.float32(fmt.max_finite)
    if scaling.scale_format == "float32":
        return max(_flush(amax / max_finite), np.float32(scaling.min_scale), SMALLEST_NORMAL)
    if scaling.scale_format == "e8m0":
        exponent = _e8m0_exponent(amax, max_finite, fmt, scaling.rule)
        return np.float32(2.0 ** min(max(exponent, -126), 127))
    upper = given_scale
    if upper is None:
        largest = np.float32(256 if scaling.rule == "four_over_six" else 448)
        upper = max(_flush(tensor_amax / (largest * max_finite)), SMALLEST_NORMAL)
    target = max_finite if target is None else target
    level = round_ref(float(_flush(_flush(amax / target) / upper)), FORMATS["e4m3fn"], "nearest_even")
    return max(max(level, np.float32(2.0**-9)) * upper, SMALLEST_NORMAL)


def squared_error_ref(values: list[np.float32], scale: np.float32, fmt: Format) -> np.float32:
    """Return the squared error of one block, its halves added until one number is left."""
    squares = []
    for x in values:
        element = np.float32(round_ref(float(_flush(_flush(x) / scale)), fmt, "nearest_even"))
        error = _flush(element * scale) - x
        squares.append(_flush(error * error))
    squares += [np.float32(0)] * ((1 << (len(squares) - 1).bit_length()) - len(squares))
    while len(squares) > 1:
        half = len(squares) // 2
        squares = [a + b for a, b in zip(squares[:half], squares[half:], strict=True)]
    return squares[0]


def error_ref(ratio: np.float32, element: np.float32, fmt: Format) -> str:
    """Name the error that rounding `ratio` to `element` makes."""
    if ratio > fmt.max_finite or ratio < fmt.min_finite:
        return "saturation"
    return "dead zone" if element == 0 else "grid"


def _e8m0_exponent(amax: np.float32, max_finite: np.float32, fmt: Format, rule: str) -> int:
    emax = _floor_log2(float(max_finite))
    if rule == "floor":
        return _floor_log2(float(amax)) - emax
    if rule == "ceil":
        return _ceil_log2(float(amax)) - emax
    if rule == "rceil":
        ratio = float(_flush(amax / max_finite))
        return _ceil_log2(ratio) if ratio > 0 else -127
    spacing_at_top = max(emax, int(fmt.min_exponent)) - int(fmt.mantissa_bits)
    spacing = 2.0 ** (_floor_log2(float(amax)) - emax + spacing_at_top)
    return _floor_log2(math.floor(float(amax) / spacing + 0.5) * spacing) - emax


def _blocks(shape: tuple[int, ...], scaling: Scaling) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """List the members of each block, by the block's number along each axis."""
    sizes = scaling.block_shape(shape)
    blocks: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for index in itertools.product(*(range(n) for n in shape)):
        number = tuple(i // size for i, size in zip(index, sizes, strict=True))
        blocks.setdefault(number, []).append(index)
    return blocks


def _amax(values: list[Any]) -> np.float32:
    return np.max(np.abs(np.asarray(values, np.float32)), initial=np.float32(0))


def _flush(x: np.float32) -> np.float32:
    return np.copysign(np.float32(0), x) if abs(x) < SMALLEST_NORMAL else x


def _floor_log2(x: float) -> int:
    return math.frexp(x)[1] - 1


def _ceil_log2(x: float) -> int:
    fraction, exponent = math.frexp(x)
    return exponent - 1 if fraction == 0.5 else exponent
