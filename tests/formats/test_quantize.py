"""The public call: what it takes and refuses, one answer in every mode of execution, and its invariants."""

import dataclasses
import itertools

import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simlab.formats import (
    FORMATS,
    ROUNDINGS,
    SCALINGS,
    Format,
    Rounding,
    Scaling,
    quantize,
    quantize_with_scale,
    round_to_format,
    stack,
)
from simlab.formats.scale_rules import SMALLEST_NORMAL
from tests.formats.strategies import DETERMINISTIC
from tests.strategies import float32_bit_patterns
from tests.tolerances import assert_exact

SYMMETRIC = ("nearest_even", "nearest_away", "toward_zero")
FLOATS = [name for name in FORMATS if name not in ("fp32", "e8m0", "int8", "int4")]
WIDTH = 64


def batch() -> np.ndarray:
    x = np.random.default_rng(11).standard_normal((8, 160), np.float32)
    x[2], x[3, :32] = 0.0, -0.0
    x[4] *= np.float32(1e30)
    return x


def numbers() -> st.SearchStrategy[np.ndarray]:
    """Arrays of one length, so that everything compiles once."""
    return st.lists(float32_bit_patterns(), min_size=WIDTH, max_size=WIDTH).map(np.array)


@pytest.mark.parametrize("name", SCALINGS)
def test_eager_compiled_and_mapped_agree(name):
    x = batch()
    compiled = jax.jit(lambda x: quantize(x, "e4m3fn", scaling=name))
    expected = np.asarray(compiled(x))
    with jax.disable_jit():
        assert_exact(quantize(x, "e4m3fn", scaling=name), expected)
    assert_exact(quantize(x, "e4m3fn", scaling=name), expected)
    assert_exact(jax.vmap(compiled)(np.stack([x, 2 * x]))[0], expected)
    if SCALINGS[name].granularity in ("none", "token") or SCALINGS[name].block in (32, 128):
        assert_exact(jax.vmap(compiled)(x), expected)  # rows know nothing of each other


@pytest.mark.parametrize(
    ("name", "first", "stride"),
    [
        pytest.param("none", 0, 1, marks=pytest.mark.slow),
        ("fp8-per-token", 0, 3),
        pytest.param("mxfp8-rceil", 1, 3, marks=pytest.mark.slow),
        pytest.param("nvfp4", 2, 3, marks=pytest.mark.slow),
    ],
)
def test_traced_formats_equal_static_ones_in_one_compilation(name, first, stride):
    # Every pair without scaling, and with one of three; each static form is a program of its own.
    x, traces = batch(), []

    @jax.jit
    def sweep(fmt: Format, rounding: Rounding):
        traces.append(fmt)
        return quantize(x, fmt, rounding=rounding, scaling=name)

    pairs = list(itertools.product(FORMATS, DETERMINISTIC))[first::stride]
    formats = stack([FORMATS[fmt] for fmt, _ in pairs])
    roundings = stack([ROUNDINGS[rounding] for _, rounding in pairs])
    swept = jax.vmap(sweep)(formats, roundings)
    assert len(traces) == 1
    for row, (fmt, rounding) in zip(swept, pairs, strict=True):
        assert_exact(row, quantize(x, fmt, rounding=rounding, scaling=name))


def test_every_preset_lowers_for_every_platform():
    def everything(x: jax.Array, fmt: Format) -> list[jax.Array]:
        return [quantize(x, fmt, scaling=name) for name in SCALINGS] + [
            quantize_with_scale(x, fmt, scaling=name).scale for name in SCALINGS
        ]

    exported = jax.export.export(jax.jit(everything), platforms=["cpu", "cuda", "tpu"])(
        jax.ShapeDtypeStruct((8, 160), jnp.float32), FORMATS["e4m3fn"]
    )
    assert exported.platforms == ("cpu", "cuda", "tpu")
    for name, made in zip(SCALINGS, exported.call(batch(), FORMATS["e4m3fn"]), strict=False):
        assert_exact(made, quantize(batch(), "e4m3fn", scaling=name))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_narrow_floats_enter_exactly(dtype):
    x = np.array([0.1, -2.5, 60000.0, 1e-7, np.inf], np.float32).astype(dtype)
    expected = quantize(x.astype(np.float32), "e4m3fn")
    assert_exact(quantize(x, "e4m3fn"), expected)
    assert_exact(quantize(jnp.asarray(x), "e4m3fn"), expected)


def test_float64_is_rounded_to_float32_first():
    tie = 1.0625  # between 1 and 1.125 in e4m3fn
    assert quantize(np.array([tie + 1e-12]), "e4m3fn") == 1.0
    assert quantize(np.array([tie + 1e-6]), "e4m3fn") == 1.125
    with jax.enable_x64(True):
        assert quantize(jnp.array([tie + 1e-12], jnp.float64), "e4m3fn").dtype == jnp.float32


def test_python_numbers_and_lists_enter():
    assert quantize(0.3, "e2m1") == 0.5
    assert_exact(quantize([0.3, -7.0], "e2m1"), np.float32([0.5, -6.0]))


def test_own_format_and_scaling_by_declaration():
    fmt = Format.declare(4, -6, 496.0)
    x = batch()[0]
    assert_exact(quantize(x, fmt), round_to_format(jnp.asarray(x), fmt, "nearest_even"))
    assert np.isfinite(
        quantize(x, fmt, scaling=Scaling("block", block=7, scale_format="e8m0", rule="even"))
    ).all()


def test_overflow_rules():
    x = np.float32([1e6, -np.inf])
    assert_exact(quantize(x, "e5m2"), np.float32([57344, -57344]))
    assert_exact(quantize(x, "e5m2", overflow="format"), np.float32([np.inf, -np.inf]))


def test_stochastic_rounding_takes_one_of_two_neighbors_by_key():
    x, key = batch()[5], jax.random.key(3)
    below, above = (quantize(x, "e4m3fn", rounding=mode, scaling="per-token") for mode in ("down", "up"))
    made = quantize(x, "e4m3fn", rounding="stochastic", scaling="per-token", key=key)
    assert ((made == below) | (made == above)).all()
    assert 0 < (made == above).mean() < 1
    assert_exact(quantize(x, "e4m3fn", rounding="stochastic", scaling="per-token", key=key), made)
    other = quantize(x, "e4m3fn", rounding="stochastic", scaling="per-token", key=jax.random.key(4))
    assert (made != other).any()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fmt": "e4m4"}, ValueError, "unknown format 'e4m4'; .*allowed: fp32, tf32, bf16"),
        ({"fmt": 8}, ValueError, "unknown format 8; allowed: fp32"),
        ({"rounding": "nearest"}, ValueError, "unknown rounding 'nearest'; .*allowed: nearest_even"),
        ({"rounding": None}, TypeError, "allowed names: nearest_even"),
        ({"overflow": "wrap"}, ValueError, "unknown overflow rule 'wrap'; allowed: saturate, format"),
        ({"scaling": "mxfp5"}, ValueError, "unknown scaling 'mxfp5'; .*allowed: none, per-tensor"),
        ({"scaling": 32}, ValueError, "unknown scaling 32; allowed: none"),
        ({"rounding": "stochastic"}, ValueError, r"needs key=; allowed: a key such as jax.random.key\(0\)"),
        ({"gradient": "none"}, ValueError, "unknown gradient 'none'; allowed: identity, clipped"),
        ({"cotangent_format": "e9"}, ValueError, "unknown format 'e9'; .*allowed: fp32"),
        *[
            ({"x": x}, TypeError, "quantize takes floating point, not .*; allowed: float32, bfloat16")
            for x in (1, [1, 2], np.arange(3), np.array([True]), np.array([1j]))
        ],
    ],
)
def test_bad_calls_are_refused(arguments, error, message):
    call = {"x": np.ones(4, np.float32), "fmt": "e4m3fn", **arguments}
    with pytest.raises(error, match=message):
        quantize(call.pop("x"), call.pop("fmt"), **call)


@given(numbers(), st.sampled_from(list(FORMATS)), st.sampled_from(DETERMINISTIC))
@settings(max_examples=50)
def test_quantizing_twice_changes_nothing(x, fmt, rounding):
    once = quantize(x, fmt, rounding=rounding)
    assert_exact(quantize(once, fmt, rounding=rounding), once)


@given(
    numbers(),
    st.sampled_from(list(FORMATS)),
    st.sampled_from(DETERMINISTIC),
    st.sampled_from(["none", "per-token"]),
)
@settings(max_examples=50)
def test_order_is_kept(x, fmt, rounding, scaling):
    x = np.sort(x[np.isfinite(x)])
    if fmt == "e8m0":
        # It has no zero, and to a scale a number below 2^-126 is one.
        x = np.sort(np.abs(x[np.abs(x) >= SMALLEST_NORMAL]))
    x = np.pad(x, (0, WIDTH - x.size), mode="edge") if x.size else np.ones(WIDTH, np.float32)
    made = np.asarray(quantize(x, fmt, rounding=rounding, scaling=scaling))
    assert (np.diff(made) >= 0).all()


@given(
    numbers(),
    st.sampled_from(FLOATS),
    st.sampled_from(SYMMETRIC),
    st.sampled_from(["none", "mxfp8", "nvfp4"]),
)
@settings(max_examples=50)
def test_signs_are_symmetric(x, fmt, rounding, scaling):
    there, back = (np.asarray(quantize(v, fmt, rounding=rounding, scaling=scaling)) for v in (x, -x))
    np.testing.assert_array_equal(there, -back)
    if FORMATS[fmt].negative_zero:
        assert_exact(there, -back)


@given(numbers(), st.sampled_from(FLOATS))
@settings(max_examples=50)
def test_relative_error_is_within_the_unit_roundoff(x, fmt):
    # The spacing is 2 u 2^floor(log2 |x|), at least 2 u 2^emin; half of it is the bound.
    record, magnitude = FORMATS[fmt], np.abs(x.astype(np.float64))
    inside = magnitude <= record.max_finite
    unit = 2.0 ** -(int(record.mantissa_bits) + 1)
    error = np.abs(np.asarray(quantize(x, fmt), np.float64) - x)
    assert (error <= unit * np.maximum(magnitude, 2.0 ** int(record.min_exponent)))[inside].all()


@given(st.integers(0, 2**32 - 1), st.sampled_from(["fp8-per-token", "mxfp8", "nvfp4", "deepseek-128x128"]))
@settings(max_examples=30)
def test_elements_lie_on_the_grid(seed, scaling):
    x = np.random.default_rng(seed).standard_normal((4, 160), np.float32)
    for fmt in ("e4m3fn", "e2m1", "int8"):
        elements = quantize_with_scale(x, fmt, scaling=scaling).elements
        assert_exact(quantize(elements, fmt), elements)


def test_pre_scaled_powers_of_two_are_idempotent():
    # With powers of two as scales the second pass finds the same scale, unless amax rounded up a binade.
    x = batch()
    scaling = dataclasses.replace(SCALINGS["mxfp8"], block=16)
    once = quantize(x, "e4m3fn", scaling=scaling)
    assert_exact(quantize(once, "e4m3fn", scaling=scaling), once)
