import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import (
    ENGINES,
    SOFTMAX_PLACEMENTS,
    Softmax,
    log_softmax,
    softmax,
    softmax_placement,
)
from simlab.formats import FORMATS, quantize, stack
from tests.oracles.rounding_ref import round_ref
from tests.oracles.softmax_ref import log_softmax_ref, softmax_ref
from tests.tolerances import assert_exact

V = 300
Z = jnp.asarray((np.random.default_rng(0).standard_normal((6, V)) * 3).astype(np.float32))


def to_format(fmt):
    return lambda x: float(round_ref(np.float32(x), FORMATS[fmt], "nearest_even", "format"))


def relative_error(z):
    """Bound on the relative error of a probability whose sites are float32, in units of 2^-24.

    z - max is rounded once, |z - max| units in the exponent; exp errs by 2 (1 ulp), as numerator and in every
    term of the sum; the sum by its depth; the division by 1.
    """
    spread = float(np.max(z) - np.min(z))
    return 2 * (spread + 2) + np.ceil(np.log2(z.shape[-1])) + 1


def test_float32_against_float64():
    actual = np.asarray(softmax(Z, "f32"))
    expected = np.array([softmax_ref(row, {}) for row in Z])
    assert (np.abs(actual - expected) <= relative_error(Z) * 2.0**-24 * expected).all()
    actual = np.asarray(log_softmax(Z, "f32"))
    expected = np.array([log_softmax_ref(row, {}) for row in Z])
    # log adds an ulp of itself and the difference one of the result, both below 2^-23 |log p| here.
    bound = relative_error(Z) * 2.0**-24 + 2 * 2.0**-23 * np.abs(expected)
    assert (np.abs(actual - expected) <= bound).all()


@pytest.mark.parametrize("width", [8, 64])
def test_bits_do_not_depend_on_the_number_of_rows(width):
    """XLA passes large arrays to a library, whose exponential differs in the last bit."""
    z = (np.random.default_rng(0).standard_normal((2**16 // width, width)) * 8).astype(np.float32)
    for function in (jax.jit(softmax, static_argnums=1), jax.jit(log_softmax, static_argnums=1)):
        parts = np.concatenate([function(rows, "f32") for rows in np.split(z, 256)])
        assert_exact(function(z, "f32"), parts)


@pytest.mark.parametrize("fmt", ["bf16", "fp16", "e4m3fn"])
@pytest.mark.parametrize("placement", SOFTMAX_PLACEMENTS)
def test_placements_against_the_oracle(placement, fmt):
    """Rounded values equal the oracle's but where float32 errors carry them over a rounding boundary.

    The oracle follows with float64 between the roundings, so a disagreement is one step of a format: of the
    probability itself, or, if an earlier step is rounded, one step (2^-bits) of exponentials or total.
    """
    steps = {step: to_format(fmt) for step in SOFTMAX_PLACEMENTS[placement].sites}
    z = Z[:3, :100]
    sites = softmax_placement(placement, fmt)
    for function, oracle in ((softmax, softmax_ref), (log_softmax, log_softmax_ref)):
        actual = np.asarray(function(z, sites), np.float64)
        expected = np.array([oracle(row, steps) for row in z])
        agree = np.abs(actual - expected) <= np.maximum(np.abs(expected), 1e-2) * relative_error(z) * 2.0**-23
        # Errors of 40 units of 2^-24 cross a boundary of spacing 2^-bits with probability below 2^(bits - 18)
        # (bf16: 2^-11, fp16: 2^-8): of 300 one or two may differ; a total that differs moves its row of 100.
        assert agree.mean() > 0.65
        step = 2.0 ** -int(FORMATS[fmt].mantissa_bits) if steps else 0
        lowest = 2.0 ** int(FORMATS[fmt].min_exponent - FORMATS[fmt].mantissa_bits) if steps else 0
        earlier = step if oracle is log_softmax_ref else 0
        bound = 2.1 * (step * np.abs(expected) + max(lowest, 1e-6) + earlier)
        assert (np.abs(actual - expected) <= bound).all()


def test_rounding_logits_and_probabilities_is_hacking_eq_45():
    """By hand: BF16 of float32 softmax of BF16 logits."""
    z = np.asarray(quantize(Z, "bf16"), np.float64)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    expected = np.asarray(quantize(p.astype(np.float32), "bf16"))
    actual = np.asarray(softmax(Z, softmax_placement("logits-probs")))
    # 1800 values, each beyond a boundary with probability below 2^-10 (see above): 12 or more once in 10^6.
    assert (actual != expected).sum() < 12
    assert_exact(actual, np.asarray(quantize(actual, "bf16")))


def test_row_bits_ignore_batch_and_compilation():
    sites = softmax_placement("everywhere")
    function = jax.jit(lambda z: (softmax(z, sites), log_softmax(z, sites)))
    mapped = jax.jit(jax.vmap(function))(Z)
    for whole, eager, row, each in zip(
        function(Z), (softmax(Z, sites), log_softmax(Z, sites)), function(Z[2]), mapped, strict=True
    ):
        assert_exact(eager, np.asarray(whole))
        assert_exact(row, np.asarray(whole)[2])
        assert_exact(each, np.asarray(whole))


def test_all_placements_and_formats_in_one_program():
    records = [softmax_placement(name, fmt) for name in SOFTMAX_PLACEMENTS for fmt in ("bf16", "e5m2")]
    together = jax.jit(jax.vmap(softmax, (None, 0)))(Z, stack(records))
    one = jax.jit(softmax)
    for record, expected in zip(records, together, strict=True):
        assert_exact(one(Z, record), np.asarray(expected))


def test_masked_logits_have_no_probability():
    z = Z.at[:, ::3].set(-jnp.inf)
    for engine in ("f32", "bf16"):
        p = np.asarray(softmax(z, engine))
        assert (p[:, ::3] == 0).all()
        # The others sum to 1: 300 roundings of float32 at most.
        np.testing.assert_allclose(p.sum(-1), 1, atol=300 * 2.0**-24)


def test_gradient_is_straight_through():
    """With rounded logits alone, the gradient is that of the float32 softmax at the rounded logits."""
    weights = jnp.asarray(np.random.default_rng(1).standard_normal(Z.shape).astype(np.float32))
    for function, plain in ((softmax, jax.nn.softmax), (log_softmax, jax.nn.log_softmax)):
        actual = jax.grad(lambda z, f=function: jnp.sum(weights * f(z, ENGINES["bf16"])))(Z)
        rounded = quantize(Z, "bf16")
        expected = jax.grad(lambda z, f=plain: jnp.sum(weights * f(z)))(rounded)
        # Both are sums of 300 products below 10 in float32.
        np.testing.assert_allclose(actual, expected, rtol=0, atol=300 * 10 * 2.0**-24)


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown softmax placement 'probz'; did you mean 'probs'"):
        softmax_placement("probz")
    with pytest.raises(ValueError, match="unknown engine"):
        softmax(jnp.zeros(3), "bf17")
    assert isinstance(softmax_placement("probs"), Softmax)
