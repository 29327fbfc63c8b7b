"""The five modes on one matrix."""

import jax.numpy as jnp
import numpy as np
import pytest

from simlab.objectives import AGGREGATIONS

TERMS = np.array([[1, 2, 4], [8, 99, 99], [99, 99, 99]], np.float32)
MASK = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0]], bool)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token-mean", 15 / 4),
        ("token-sum", 15),
        ("seq-mean-token-sum", (7 + 8) / 2),
        ("seq-mean-token-sum-norm", (7 + 8) / 2 / 3),
        ("seq-mean-token-mean", (7 / 3 + 8) / 2),
    ],
)
def test_by_hand(name, expected):
    # Two divisions in float32.
    np.testing.assert_allclose(AGGREGATIONS[name](jnp.asarray(TERMS), jnp.asarray(MASK)), expected, rtol=2e-7)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_nothing_left_is_zero(name):
    assert AGGREGATIONS[name](jnp.asarray(TERMS), jnp.zeros((3, 3), bool)) == 0


def test_names_are_those_of_verl():
    assert list(AGGREGATIONS) == [
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-sum-norm",
        "seq-mean-token-mean",
    ]
