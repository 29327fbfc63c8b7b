from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import rms_norm
from simlab.engines.accumulate import ExactSum, Float32Sum
from simlab.engines.ordered_sums import is_order_free, largest_of_row, sum_of_row, tree_sum
from tests.tolerances import assert_exact


@pytest.mark.parametrize("n", [1, 15, 16, 17, 100, 1000])
def test_error_is_within_the_depth_of_the_tree(n):
    x = np.random.default_rng(n).exponential(size=(20, n)).astype(np.float32)
    exact = np.array([float(sum(map(Fraction, map(float, row)))) for row in x])
    # Each level of additions of non-negative numbers adds at most 2^-24 relative error.
    depth = int(np.ceil(np.log2(max(n, 16))))
    assert (np.abs(np.asarray(tree_sum(jnp.asarray(x))) - exact) <= depth * 2.0**-24 * exact * 1.0001).all()


def test_bits_depend_on_neither_batch_nor_zeros_at_the_end():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((9, 70)).astype(np.float32))
    whole = np.asarray(jax.jit(tree_sum)(x))
    assert_exact(tree_sum(x), whole)
    assert_exact(tree_sum(x[3]), whole[3])
    assert_exact(jax.vmap(tree_sum)(x), whole)
    for zeros in (1, 10, 58, 500):
        assert_exact(tree_sum(jnp.pad(x, ((0, 0), (0, zeros)))), whole)
    # A sum of the device has none of this to offer, or the test would have no teeth.
    assert not np.array_equal(np.asarray(tree_sum(x[:, ::-1])), whole)


def test_order_is_free_on_a_gpu_for_plain_products_alone(monkeypatch):
    assert not is_order_free(Float32Sum())
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert [is_order_free(each) for each in (Float32Sum(), ExactSum(), None)] == [True, False, False]


@pytest.mark.parametrize("engine", ["f32", "f32-exact", "bf16"])
def test_norm_on_a_gpu_keeps_values_and_exact_engines_bits(engine, monkeypatch):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((9, 70)).astype(np.float32))
    weight = jnp.linspace(0.5, 2.0, 70, dtype=jnp.float32)
    expected = rms_norm(x, weight, engine)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    actual = rms_norm(x, weight, engine)
    if engine == "f32":
        # Two orders of 70 positive terms, halved by the root, and three roundings behind it.
        np.testing.assert_allclose(actual, expected, rtol=80 * 2.0**-24)
    else:
        assert_exact(actual, expected)


@pytest.mark.parametrize("products", [Float32Sum(), ExactSum()])
def test_sum_of_row_on_a_gpu_is_within_the_error_of_any(products, monkeypatch):
    x = jnp.asarray(np.random.default_rng(0).exponential(size=(9, 70)).astype(np.float32))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_allclose(sum_of_row(x, products), tree_sum(x), rtol=70 * 2.0**-24)


def test_gradient_is_one():
    assert_exact(jax.grad(lambda x: tree_sum(x))(jnp.arange(40.0)), np.ones(40, np.float32))


@pytest.mark.parametrize("n", [1, 16, 17, 100])
def test_maximum_is_that_of_numpy(n):
    x = np.random.default_rng(n).standard_normal((5, n)).astype(np.float32)
    x[1, -1], x[2, 0], x[3], x[4, 0] = np.nan, np.inf, -np.inf, np.copysign(np.nan, -1)
    assert_exact(largest_of_row(jnp.asarray(x)), x.max(axis=-1, keepdims=True))
