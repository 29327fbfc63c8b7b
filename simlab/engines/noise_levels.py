"""Rounding noise of a chosen level, injected into an engine.

Each noise kind maps an engine and a number of mantissa bits to an engine; fewer bits are more mismatch. The
bits may be traced, so all levels share one compiled function.
"""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from simlab.core.pytree import Integer
from simlab.engines.accumulate import Accumulator, PartialSums
from simlab.engines.builders import FP8_S4
from simlab.engines.engine import Engine
from simlab.engines.site import Site
from simlab.formats import FORMATS, OVERFLOWS, ROUNDINGS, SCALINGS, Format


def truncate_fp8_operands(engine: Engine, bits: Integer) -> Engine:
    """Truncate the operands of projections and experts to `bits`, 2 to 21, scaled as FP8.

    Activations are scaled per token and weights per channel to the range of E4M3; only the number of mantissa
    bits differs. No number of bits is the identity, as the scales are not powers of two. An engine with
    `experts` or `row_parallel` of its own keeps those.

    Raises:
        ValueError: For other bits.

    Reference: acrl Sec. 5, Tab. 2; vexact V3.
    """
    fmt = replace(FP8_S4, mantissa_bits=_check_bits(bits, tuple(range(2, 22))))
    x, w = (_truncate_operand(fmt, SCALINGS[name]) for name in ("fp8-per-token", "fp8-per-channel"))
    return replace(engine, projection=replace(engine.projection, activations=x, weights=w))


def truncate_operands(engine: Engine, bits: Integer) -> Engine:
    """Truncate the operands of projections and experts to `bits`, 0 to 21, where they are, without a scale.

    The range stays that of float32. Of operands that are in BF16 already, 7 bits remove nothing. An engine
    with `experts` or `row_parallel` of its own keeps those.

    Raises:
        ValueError: For other bits.

    Reference: acrl Tab. 2; vexact V3.
    """
    site = _truncate_operand(_wide(_check_bits(bits, tuple(range(22)))), None)
    return replace(engine, projection=replace(engine.projection, activations=site, weights=site))


def round_sums(engine: Engine, bits: Integer) -> Engine:
    """Round the running sum of products to `bits`, 0 to 21 or 23, after each 16 terms; 23 is float32.

    The order within is fixed, so 23 bits leave an engine that adds in order (`bf16-ordered`) as it is. An
    engine with `experts` or `row_parallel` of its own keeps their sums.

    Raises:
        ValueError: For other bits.

    Reference: vexact V3; NVIDIA cuBLAS split-K in BF16.
    Deviation: sums of all products are rounded equally, real kernels choose by shape.
    """
    fmt = _wide(_check_bits(bits, (*range(22), 23)))
    site = Site(fmt, ROUNDINGS["nearest_even"], OVERFLOWS["format"])
    return _set_accumulator(engine, PartialSums(site, block=16, inside="ordered"))


NOISE_KINDS: dict[str, Callable[[Engine, Integer], Engine]] = {
    "truncated-fp8": truncate_fp8_operands,
    "truncated": truncate_operands,
    "rounded-sums": round_sums,
}


def _truncate_operand(fmt: Format, scaling) -> Site:
    return Site(fmt, ROUNDINGS["toward_zero"], OVERFLOWS["saturate"], scaling)


def _wide(bits: Integer) -> Format:
    """Return float32 with other mantissa bits."""
    largest = (2 - jnp.ldexp(jnp.float32(1), -bits)) * jnp.float32(2.0**127)
    return replace(FORMATS["fp32"], mantissa_bits=bits, max_finite=largest, min_finite=-largest)


def _set_accumulator(engine: Engine, accumulator: Accumulator) -> Engine:
    attention = replace(engine.attention, score_accumulator=accumulator, value_accumulator=accumulator)
    products = {
        name: replace(getattr(engine, name), accumulator=accumulator)
        for name in ("projection", "router", "lm_head")
    }
    return replace(engine, attention=attention, **products)


def _check_bits(bits: Integer, allowed: tuple[int, ...]) -> Integer:
    """Return int32 bits; traced and stacked ones pass unseen."""
    if isinstance(bits, jax.Array):
        return bits.astype(jnp.int32)
    if bits not in allowed:
        raise ValueError(f"invalid noise level of {bits!r} bits; allowed: {', '.join(map(str, allowed))}")
    return np.int32(bits)
