"""Straight-through gradients: what reaches x, bit for bit, in every mode of execution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.formats import FORMATS, SCALINGS, Scaling, dequantize, quantize, quantize_with_scale, stack
from simlab.formats.scaling import expand_scale
from tests.tolerances import assert_exact

X = np.random.default_rng(2).standard_normal((4, 48), np.float32) * np.float32(300)
COTANGENT = np.random.default_rng(3).standard_normal((4, 48), np.float32) * np.float32(1000)


def pull(cotangent, x, fmt, **options):
    return jax.vjp(lambda x: quantize(x, fmt, **options), x)[1](cotangent)[0]


@pytest.mark.parametrize("name", SCALINGS)
def test_identity_passes_the_cotangent_untouched(name):
    assert_exact(pull(COTANGENT, X, "e4m3fn", scaling=name), COTANGENT)
    compiled = jax.jit(lambda c, x: pull(c, x, "e4m3fn", scaling=name))
    assert_exact(compiled(COTANGENT, X), COTANGENT)


def test_stochastic_rounding_has_the_same_gradient():
    made = pull(COTANGENT, X, "e4m3fn", rounding="stochastic", key=jax.random.key(0))
    assert_exact(made, COTANGENT)


def test_clipped_is_zero_outside_the_range():
    x = np.float32([1.0, 448.0, 449.0, -448.0, -1e9, np.inf, np.nan, 0.0])
    made = pull(np.full(8, 3.0, np.float32), x, "e4m3fn", gradient="clipped")
    assert_exact(made, np.float32([3, 3, 0, 3, 0, 0, 3, 3]))


def test_clipped_asks_for_x_over_its_scale():
    x = np.float32([1.0, 895.0, 897.0, -900.0])
    given = Scaling("tensor", given=2.0)
    made = pull(np.ones(4, np.float32), x, "e4m3fn", scaling=given, gradient="clipped")
    assert_exact(made, np.float32([1, 1, 0, 0]))
    # A scale from amax clips nothing but what the division rounds past the range.
    assert pull(COTANGENT, X, "e5m2", scaling="mxfp8-rceil", gradient="clipped").all()


def test_clipped_integers_keep_their_lowest_value():
    x = np.float32([127.0, 128.0, -128.0, -129.0])
    assert_exact(pull(np.ones(4, np.float32), x, "int8", gradient="clipped"), np.float32([1, 0, 1, 0]))


def test_cotangent_is_rounded_when_asked():
    made = pull(COTANGENT, X, "e4m3fn", cotangent_format="e5m2")
    assert_exact(made, quantize(COTANGENT, "e5m2"))
    both = pull(COTANGENT, X, "e4m3fn", gradient="clipped", cotangent_format="e5m2")
    assert_exact(both, np.where(np.abs(X) > 448, np.float32(0), quantize(COTANGENT, "e5m2")))


def test_traced_formats_under_jit_vmap_and_grad():
    names = ["e4m3fn", "e5m2", "int8", "fp32"]

    @jax.jit
    def sweep(fmt, cotangent_format):
        def loss(x):
            y = quantize(x, fmt, scaling="mxfp8", gradient="clipped", cotangent_format=cotangent_format)
            return jnp.sum(y * COTANGENT)

        return jax.grad(loss)(X)

    formats = stack([FORMATS[name] for name in names])
    for row, name in zip(jax.vmap(sweep)(formats, formats), names, strict=True):
        expected = pull(
            COTANGENT, X, name, scaling="mxfp8", gradient="clipped", cotangent_format=FORMATS[name]
        )
        assert_exact(row, expected)


def test_formats_and_given_scales_get_no_gradient():
    fmt = jax.tree.map(jnp.asarray, FORMATS["e4m3fn"])
    gradient = jax.grad(lambda fmt: quantize(X, fmt).sum(), allow_int=True)(fmt)
    assert gradient.max_finite == 0
    given = jax.grad(lambda s: quantize(X, "e4m3fn", scaling=Scaling("tensor", given=s)).sum())(2.0)
    assert given == 0


def test_works_inside_scan_and_checkpoint():
    @jax.checkpoint
    def layer(x, _):
        return quantize(x, "e4m3fn", scaling="per-token"), None

    gradient = jax.grad(lambda x: (jax.lax.scan(layer, x, None, length=3)[0] * COTANGENT).sum())(X)
    assert_exact(gradient, COTANGENT)


@pytest.mark.parametrize("name", ["fp8-per-token", "mxfp8", "nvfp4"])
def test_elements_divide_the_cotangent_by_the_scale(name):
    made, pull_back = jax.vjp(lambda x: quantize_with_scale(x, "e4m3fn", scaling=name), X)
    cotangent = jax.tree.map(jnp.ones_like, made)._replace(elements=jnp.asarray(COTANGENT))
    (gradient,) = pull_back(cotangent)
    scale = np.asarray(expand_scale(made.scale, X.shape, SCALINGS[name]))
    assert_exact(gradient, COTANGENT / scale)


def test_elements_times_scale_pass_the_cotangent_on():
    def again(x):
        return dequantize(quantize_with_scale(x, "e4m3fn", scaling="mxfp8"), "mxfp8")

    # Powers of two multiply and divide exactly.
    assert_exact(jax.vjp(again, X)[1](COTANGENT)[0], COTANGENT)
