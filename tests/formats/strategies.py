"""Formats, modes and the inputs on which a rounding can go wrong."""

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from simlab.formats.catalog import FORMATS
from simlab.formats.format import Format
from simlab.formats.rounding_modes import OVERFLOWS, ROUNDINGS

DETERMINISTIC = [name for name in ROUNDINGS if name != "stochastic"]

# int4 and int8 of NumPy and ml_dtypes truncate and wrap, so they are no reference for rounding.
ML_DTYPES = {
    "fp32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3": ml_dtypes.float8_e4m3,
    "e3m4": ml_dtypes.float8_e3m4,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}

SPECIAL_BITS = np.array(
    [
        *(
            0,
            1,
            2,
            0x400000,
            0x400001,
            0x600000,
            0x600001,
            0x7FFFFF,
            0x800000,
            0x7F7FFFFF,
        ),  # subnormals, ends
        *(0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF),  # infinity, signaling and quiet NaN, whole payload
    ],
    np.uint32,
)


def all_bfloat16() -> np.ndarray:
    """Every bfloat16 bit pattern as float32."""
    return (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)


def random_bit_patterns(count: int, seed: int) -> np.ndarray:
    """Float32 numbers with uniformly random bits."""
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32).view(np.float32)


def representable(fmt: Format, per_binade: int = 2048) -> np.ndarray:
    """Positive values on the grid, to beyond the largest, in float64; wide binades are sampled."""
    bits, lowest = int(fmt.mantissa_bits), int(fmt.min_exponent)
    top = int(np.frexp(float(fmt.max_finite))[1])
    rng = np.random.default_rng(bits)
    values = [np.arange(2**bits) if bits <= 10 else rng.integers(0, 2**bits, per_binade)]
    values[0] = np.ldexp(values[0].astype(np.float64), lowest - bits)
    for exponent in range(lowest, max(top, lowest) + 1):
        steps = np.arange(2**bits) if 2**bits <= per_binade else rng.integers(0, 2**bits, per_binade)
        values.append(np.ldexp((2**bits + steps).astype(np.float64), exponent - bits))
    return np.concatenate(values)


def edge_values(fmt: Format, per_binade: int = 2048) -> np.ndarray:
    """Representable values and midpoints, each with its float32 neighbors, of both signs, and specials."""
    values = representable(fmt, per_binade)
    exponents = np.maximum(np.frexp(values)[1] - 1, int(fmt.min_exponent))
    middles = values + np.ldexp(0.5, exponents - int(fmt.mantissa_bits))
    with np.errstate(over="ignore"):
        centers = np.concatenate([values, middles]).astype(np.float32).view(np.uint32)
    around = np.concatenate([centers - 1, centers, centers + 1])
    positive = np.unique(np.concatenate([around[around < 0x7F800000], SPECIAL_BITS]))
    return np.concatenate([positive, positive | np.uint32(0x80000000)]).view(np.float32)


def format_names() -> st.SearchStrategy[str]:
    """A name in the catalog."""
    return st.sampled_from(sorted(FORMATS))


def rounding_names() -> st.SearchStrategy[str]:
    """A deterministic rounding mode."""
    return st.sampled_from(DETERMINISTIC)


def overflow_names() -> st.SearchStrategy[str]:
    """An overflow rule."""
    return st.sampled_from(sorted(OVERFLOWS))


@st.composite
def custom_formats(draw) -> Format:
    """Any declarable format with a sign."""
    bits = draw(st.integers(0, 21))
    lowest = draw(st.integers(bits - 102, 20) | st.just(-126))
    # The largest value: a full significand, a power of two, or the last subnormal (the integers).
    top = draw(st.integers(lowest, min(lowest + 60, 101 + bits)))
    largest = draw(
        st.sampled_from(
            [(2 - 2.0**-bits) * 2.0**top, 2.0**top, (2 - 2.0 ** (1 - bits)) * 2.0 ** (lowest - 1)]
        )
    )
    largest = largest or 2.0**top
    overflow = draw(st.sampled_from([float("inf"), float("nan"), largest]))
    negative_zero = lowest == -126 or draw(st.booleans())
    zeros = [0.0, -0.0][: 1 + negative_zero] if overflow == largest else []
    return Format.declare(
        bits,
        lowest,
        largest,
        overflow_value=overflow,
        nan_value=draw(st.sampled_from([float("nan"), *zeros])),
        negative_zero=negative_zero,
    )
