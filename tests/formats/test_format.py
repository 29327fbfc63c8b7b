"""The record and the catalog."""

import dataclasses

import gfloat
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from gfloat.formats import format_info_p3109

from simlab.formats.catalog import FORMATS
from simlab.formats.format import Format, stack
from simlab.formats.rounding import round_to_format
from tests.formats.strategies import ML_DTYPES


@pytest.mark.parametrize("name", ML_DTYPES)
def test_catalog_has_the_numbers_of_ml_dtypes(name):
    fmt, info = FORMATS[name], ml_dtypes.finfo(ML_DTYPES[name])
    assert float(fmt.max_finite) == float(info.max)
    assert float(fmt.min_finite) == float(info.min)
    if name != "e8m0":
        assert int(fmt.mantissa_bits) == info.nmant
        assert int(fmt.min_exponent) == info.minexp


def test_catalog_has_the_sixteen_formats():
    expected = "fp32 tf32 bf16 fp16 e5m2 e4m3fn e4m3 e4m3fnuz e5m2fnuz e3m4 e3m2 e2m3 e2m1 e8m0 int8 int4"
    assert sorted(FORMATS) == sorted(expected.split())


# Counted from the encodings: 2^bits codes, less -0, NaNs and infinities.
FINITE_VALUES = {
    "e5m2": 256 - 1 - 8,
    "e4m3": 256 - 1 - 16,
    "e3m4": 256 - 1 - 32,
    "e4m3fn": 256 - 1 - 2,
    "e4m3fnuz": 256 - 1,
    "e5m2fnuz": 256 - 1,
    "e8m0": 256 - 1,
    "e3m2": 64 - 1,
    "e2m3": 64 - 1,
    "e2m1": 16 - 1,
    "int8": 256,
    "int4": 16,
}


@pytest.mark.parametrize("name", FINITE_VALUES)
def test_rounding_reaches_exactly_the_finite_values(name):
    # Every value of a format with at most 8 bits is a bfloat16.
    x = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    values = np.asarray(round_to_format(x, FORMATS[name], "nearest_even"))
    assert np.unique(np.abs(values[values == 0])).size <= 1
    assert np.unique(values[np.isfinite(values)]).size == FINITE_VALUES[name]


def test_records_hold_numbers_only():
    for fmt in FORMATS.values():
        leaves = jax.tree.leaves(fmt)
        assert len(leaves) == len(dataclasses.fields(Format))
        assert all(np.isscalar(leaf) for leaf in leaves)


def test_stacked_records_map_back_to_each():
    stacked = stack(list(FORMATS.values()))
    assert {leaf.shape for leaf in jax.tree.leaves(stacked)} == {(len(FORMATS),)}
    largest = jax.vmap(lambda fmt: fmt.max_finite)(stacked)
    assert largest.tolist() == [float(fmt.max_finite) for fmt in FORMATS.values()]


def test_a_custom_format_is_one_declaration():
    # P3109 binary8p3: bias 16, no -0, one NaN, infinities.
    custom = Format.declare(2, -15, 49152.0, negative_zero=False)
    reference = format_info_p3109(8, 3)
    x = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    expected = gfloat.round_ndarray(reference, x.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(round_to_format(jnp.asarray(x), custom, "nearest_even", "format"), expected)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((24, -126, 1.0), {}, "mantissa_bits must be 0 to 21, or 23 .*, got 24"),
        ((22, -126, 1.0), {}, "mantissa_bits must be .*, got 22"),
        ((23, -14, 1.0), {}, "mantissa_bits must be .*, got 23"),
        ((3, -6, 2.0**105), {}, r"for 3 mantissa bits, got -6 and 4\.05"),
        ((3, -122, 1.0), {}, "min_exponent must be .* for 3 mantissa bits, got -122"),
        ((3, -127, 1.0), {}, "min_exponent must be .*, got -127"),
        ((3, -6, 449.0), {}, "max_finite must be representable with 3 mantissa bits, got 449.0"),
        ((3, -6, np.inf), {}, "max_finite below .*, got -6 and inf"),
        ((7, -126, np.inf), {}, "max_finite must be a finite float32, got inf"),
        ((3, -6, 448.0), {"min_finite": 0.0}, "min_finite negative"),
        ((3, -6, 448.0), {"min_finite": -0.3}, "min_finite must be .*, got -0.3"),
        ((3, -6, 448.0), {"overflow_value": 3.0}, "overflow_value must be inf, nan or .*, got 3.0"),
        ((7, -126, 1.0), {"negative_zero": False}, "negative_zero must be True with min_exponent -126"),
        ((3, -6, 448.0), {"nan_value": 0.0}, "nan_value must be nan, or a zero if .*, got 0.0"),
        ((3, -6, 448.0), {"nan_value": 1.0}, "nan_value must be nan, .*, got 1.0"),
    ],
)
def test_impossible_declarations_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        Format.declare(*arguments, **options)
