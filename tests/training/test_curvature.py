"""Lanczos against dense spectra: plain matrices, and the Hessian of a small function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.training.curvature import hessian_ends, lanczos_ends

SIZE = 40
KEY = jax.random.key(0)


def matrix_with(eigenvalues, seed=0):
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(eigenvalues),) * 2))
    return (rotation * eigenvalues) @ rotation.T


@jax.jit
def ends(matrix):
    start = jax.random.normal(KEY, matrix.shape[:1])
    return lanczos_ends(lambda v: matrix @ v, start, SIZE)


@pytest.mark.parametrize(
    "eigenvalues",
    [
        np.linspace(-3, 5, SIZE),
        np.linspace(-7, -2, SIZE),  # negative definite: zero is not an eigenvalue
        np.repeat([-1.0, 2.0], SIZE // 2),  # exhausted after two directions
        np.full(SIZE, 3.0),
        10.0 ** np.linspace(-6, 1, SIZE),
    ],
    ids=["indefinite", "negative", "two", "one", "graded"],
)
def test_as_many_iterations_as_dimensions_are_exact(eigenvalues):
    found = ends(matrix_with(eigenvalues).astype(np.float32))
    largest = np.abs(eigenvalues).max()
    # 40 products of 40 terms and a 40 x 40 eigenproblem in float32.
    error = 4 * SIZE * 2.0**-24 * largest
    assert abs(found.top - eigenvalues.max()) <= error
    assert abs(found.bottom - eigenvalues.min()) <= error


def test_few_iterations_report_their_error_bound():
    eigenvalues = np.sort(np.random.default_rng(1).standard_normal(SIZE))
    matrix = jnp.asarray(matrix_with(eigenvalues), jnp.float32)
    for iterations in (3, 8):
        found = lanczos_ends(lambda v: matrix @ v, jax.random.normal(KEY, (SIZE,)), iterations)
        assert eigenvalues[0] - 1e-5 <= found.bottom <= found.top <= eigenvalues[-1] + 1e-5
        assert np.abs(eigenvalues - float(found.top)).min() <= found.residual + 1e-5


def test_hessian_of_a_function_of_a_tree():
    quadratic = jnp.asarray(matrix_with(np.linspace(-2, 4, 6)), jnp.float32)

    def loss(tree):
        x = jnp.concatenate([tree["a"].ravel(), tree["b"]])
        return 0.5 * x @ quadratic @ x + jnp.sum(jnp.sin(x))

    params = {"a": jnp.asarray([[0.3, -0.2], [0.5, 0.9]]), "b": jnp.asarray([0.1, -1.0])}
    flat = np.concatenate([np.ravel(leaf) for leaf in params.values()])
    dense = np.linalg.eigvalsh(np.asarray(quadratic, np.float64) - np.diag(np.sin(flat)))
    found = jax.jit(lambda p: hessian_ends(loss, p, KEY, iterations=6))(params)
    np.testing.assert_allclose([found.bottom, found.top], dense[[0, -1]], atol=1e-5)
