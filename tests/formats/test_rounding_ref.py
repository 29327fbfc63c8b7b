"""The oracle itself, on values that can be checked by hand or by NumPy's own types."""

import numpy as np
import pytest

from simlab.formats.catalog import FORMATS
from tests.formats.strategies import ML_DTYPES, edge_values
from tests.oracles.rounding_ref import round_ref
from tests.tolerances import assert_exact


@pytest.mark.parametrize("name", ML_DTYPES)
def test_nearest_even_is_the_cast_of_ml_dtypes(name):
    edges = edge_values(FORMATS[name], per_binade=64)
    x = np.random.default_rng(0).choice(edges, min(edges.size, 2000), replace=False)
    expected = x.astype(ML_DTYPES[name]).astype(np.float32)
    assert_exact(np.array([round_ref(v, FORMATS[name], "nearest_even", "format") for v in x]), expected)


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("nearest_even", [2.0, -2.0, 4.0, 0.0]),
        ("nearest_away", [3.0, -3.0, 4.0, 0.0]),
        ("toward_zero", [2.0, -2.0, 3.0, 0.0]),
        ("up", [3.0, -2.0, 4.0, 1.0]),
        ("down", [2.0, -3.0, 3.0, 0.0]),
    ],
)
def test_modes_on_integers(rounding, expected):
    rounded = [round_ref(x, FORMATS["int8"], rounding) for x in (2.5, -2.5, 3.75, 1e-45)]
    assert_exact(np.array(rounded), np.array(expected, np.float32))


def test_stochastic_compares_the_fraction_with_the_word():
    fmt = FORMATS["int8"]
    # 2.25 goes up for a quarter of all words: those of at least three quarters of the range.
    assert round_ref(2.25, fmt, "stochastic", word=0xC0000000) == 3
    assert round_ref(2.25, fmt, "stochastic", word=0xBFFFFFFF) == 2
    assert round_ref(-2.25, fmt, "stochastic", word=0xC0000000) == -3


def test_overflow_rules():
    e4m3fn, fp16 = FORMATS["e4m3fn"], FORMATS["fp16"]
    assert round_ref(464.0, e4m3fn, "nearest_even", "format") == 448
    assert np.isnan(round_ref(480.0, e4m3fn, "nearest_even", "format"))
    assert round_ref(480.0, e4m3fn, "nearest_even", "saturate") == 448
    assert round_ref(-np.inf, e4m3fn, "nearest_even", "saturate") == -448
    assert round_ref(1e6, fp16, "toward_zero", "format") == 65504
    assert round_ref(np.inf, fp16, "toward_zero", "format") == np.inf


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="sideways"):
        round_ref(2.5, FORMATS["int8"], "sideways")
    with pytest.raises(ValueError, match="wrap"):
        round_ref(1e9, FORMATS["int8"], "up", "wrap")
