import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import ACCUMULATORS, matmul
from tests.engines.operands import normal
from tests.tolerances import assert_exact

A, B = jnp.asarray(normal((5, 48), 0)), jnp.asarray(normal((48, 6), 1))


def test_float32_is_the_plain_product():
    assert_exact(matmul(A, B), np.asarray(A @ B))
    batch = jnp.stack([A, 2 * A])
    assert_exact(matmul(batch, B), np.asarray(batch @ B))


@pytest.mark.parametrize("name", ACCUMULATORS)
def test_error_against_float64(name):
    reference = np.asarray(A, np.float64) @ np.asarray(B, np.float64)
    absolute = np.abs(A).astype(np.float64) @ np.abs(B).astype(np.float64)
    # 48 float32 additions; up to four blocks: 4 roundings of partials and 4 of sums, 2^-8 or 2^-11 each.
    unit = {"bf16": 2.0**-8, "fp16": 2.0**-11}.get(name[:4], 0)
    bound = 48 * 2.0**-24 + 8 * unit * 1.03
    assert (np.abs(np.asarray(matmul(A, B, accumulator=name)) - reference) <= absolute * bound).all()


@pytest.mark.parametrize("name", ["float32", "exact", "bf16-partial-32", "bf16-pairwise-32-ordered"])
def test_gradient_is_that_of_the_plain_product(name):
    """Both modes, and through jit and vmap; the weights make every entry's cotangent different."""
    weights = jnp.asarray(normal((5, 6), 2))
    loss = lambda a, b: jnp.sum(weights * matmul(a, b, accumulator=name))  # noqa: E731
    plain = lambda a, b: jnp.sum(weights * (a @ b))  # noqa: E731
    for actual, expected in zip(
        jax.jit(jax.grad(loss, (0, 1)))(A, B), jax.jit(jax.grad(plain, (0, 1)))(A, B), strict=True
    ):
        assert_exact(actual, np.asarray(expected))
    tangents = (jnp.ones_like(A), B)
    actual = jax.jvp(lambda a, b: matmul(a, b, accumulator=name), (A, B), tangents)[1]
    np.testing.assert_allclose(actual, tangents[0] @ B + A @ tangents[1], rtol=1e-6)
    stacked = jax.vmap(jax.grad(loss), (0, None))(jnp.stack([A, A]), B)
    assert_exact(stacked[1], np.asarray(jax.grad(plain)(A, B)))


def test_second_derivatives_exist_in_both_orders():
    loss = lambda a: jnp.sum(matmul(a, B, accumulator="exact") ** 2)  # noqa: E731
    direction = jnp.ones_like(A)
    forward_over_reverse = jax.jvp(jax.grad(loss), (A,), (direction,))[1]
    reverse_over_reverse = jax.grad(lambda a: jnp.vdot(jax.grad(loss)(a), direction))(A)
    expected = 2 * np.asarray(direction, np.float64) @ np.asarray(B, np.float64) @ np.asarray(B, np.float64).T
    scale = np.abs(expected).max()
    # Two products of 48 and 6 terms in float32, errors below 100 * 2^-24 of the largest entry.
    np.testing.assert_allclose(forward_over_reverse, expected, rtol=0, atol=scale * 1e-5)
    np.testing.assert_allclose(reverse_over_reverse, expected, rtol=0, atol=scale * 1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: matmul(A, B, accumulator="flaot32"), "did you mean 'float32'.*allowed: float32, exact"),
        (lambda: matmul(A, B, format="e4m4"), "unknown format"),
        (lambda: matmul(A, B.T), "cannot multiply"),
        (lambda: matmul(A, B[None]), "allowed"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="bfloat16"):
        matmul(A.astype(jnp.bfloat16), B)
    with pytest.raises(TypeError, match="int32"):
        matmul(A, B.astype(jnp.int32))
