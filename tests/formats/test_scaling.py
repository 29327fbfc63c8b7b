"""Scales against the oracle, torchao and microxcaling, and against what every scaling must satisfy."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simlab.formats import FORMATS, SCALINGS, Scaling, dequantize, find_scale, quantize, quantize_with_scale
from simlab.formats.scale_rules import E8M0_RULES, divide, multiply
from simlab.formats.scaling import ERRORS, SCALE_FORMATS, block_amax, expand_scale
from tests.oracles.scaling_ref import quantize_ref
from tests.tolerances import assert_exact

GOLDENS = np.load(Path(__file__).parent / "goldens" / "mx.npz")
X = GOLDENS["x"]
E8M0_32 = Scaling("block", block=32, scale_format="e8m0")

# Short last blocks, and blocks in every direction.
CASES = {
    **{name: scaling for name, scaling in SCALINGS.items() if name != "none"},
    **{f"e8m0-{rule}": dataclasses.replace(E8M0_32, block=5, rule=rule) for rule in E8M0_RULES},
    "block-of-weights": dataclasses.replace(SCALINGS["mxfp8"], block=4, axis=-2),
    "square": Scaling("block", block=(3, 4)),
    "levels-of-rows": Scaling("block", block=(1, 7), scale_format="e4m3"),
    "four-over-six-short-blocks": Scaling("block", block=7, scale_format="e4m3", rule="four_over_six"),
    **{
        f"mxfp4-{'-'.join(errors) or 'none'}": dataclasses.replace(SCALINGS["mxfp4"], errors=errors)
        for errors in ((), ("saturation",), ("dead zone",), ("grid",), ("dead zone", "grid"))
    },
    "given": Scaling("tensor", given=0.37),
    "given-per-token": Scaling(
        "token", given=np.float32([[0.5], [3.0], [0.01], [1.0], [7.0], [2.0], [1e-3]])
    ),
    "given-upper-level": Scaling("block", block=5, scale_format="e4m3", given=0.02),
}


def rows() -> np.ndarray:
    """Seven rows of 19: ordinary, wide, zeros, float32's ends, subnormals, and non-numbers among numbers."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((7, 19)) * np.exp2(rng.integers(-8, 9, (7, 19)))
    x[1] *= np.exp2(rng.integers(-90, 90, 19))
    x[2, :10] = 0.0
    x[2, 3] = -0.0
    x[3] = rng.choice([2.0**-126, 1.5 * 2.0**-126, -(2.0**-120), 2.0**-119, 3.0e38, 0.0], 19)
    x[4] = 1e-40
    x[4, 11:] *= 2.0 ** np.arange(8)
    return x.astype(np.float32)


@pytest.mark.parametrize("fmt", ["e4m3fn", "e5m2", "e2m3", "e2m1", "int8", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_oracle(name, fmt):
    x, scaling = rows(), CASES[name]
    result, elements, scales = quantize_ref(x, FORMATS[fmt], scaling)
    made = quantize_with_scale(x, fmt, scaling=scaling)
    assert_exact(quantize(x, fmt, scaling=scaling), result)
    assert_exact(made.elements, elements)
    assert_exact(expand_scale(made.scale, x.shape, scaling), scales)
    assert_exact(dequantize(made, scaling), result)


@pytest.mark.parametrize("rounding", ["toward_zero", "up"])
@pytest.mark.parametrize("name", ["fp8-per-token", "mxfp8", "nvfp4"])
def test_equals_the_oracle_in_directed_modes(name, rounding):
    x = rows()
    result, _, _ = quantize_ref(x, FORMATS["e4m3fn"], SCALINGS[name], rounding, "format")
    assert_exact(quantize(x, "e4m3fn", rounding=rounding, overflow="format", scaling=name), result)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3, 5)])
def test_any_shape_can_be_scaled(shape):
    x = np.linspace(-2, 3, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    for scaling in (SCALINGS["per-tensor"], Scaling("block", block=2), Scaling("block", block=(2, 2))):
        if scaling.granularity == "tensor" or len(shape) >= (2 if isinstance(scaling.block, tuple) else 1):
            assert_exact(
                quantize(x, "e4m3fn", scaling=scaling), quantize_ref(x, FORMATS["e4m3fn"], scaling)[0]
            )


@pytest.mark.parametrize("golden", [name for name in GOLDENS.files if name.startswith("torchao/")])
def test_mx_equals_torchao(golden):
    _, fmt, rule = golden.split("/")
    made = quantize(X, fmt, scaling=dataclasses.replace(E8M0_32, rule=rule))
    np.testing.assert_array_equal(made, GOLDENS[golden])


@pytest.mark.parametrize("golden", [name for name in GOLDENS.files if name.startswith("microxcaling/")])
def test_mx_equals_microxcaling(golden):
    _, fmt, case = golden.split("/")
    made = quantize(X if case == "full" else X[:, :80], fmt, scaling="mxfp8")
    np.testing.assert_array_equal(made, GOLDENS[golden])  # microxcaling has no -0


def test_the_three_errors_of_mxfp4_add_up_to_the_error():
    x = np.float32(np.random.default_rng(3).standard_normal((64, 96)))
    scaling = SCALINGS["mxfp4"]
    total = quantize(x, "e2m1", scaling=scaling) - x
    alone = {
        error: quantize(x, "e2m1", scaling=dataclasses.replace(scaling, errors=(error,))) - x
        for error in ERRORS
    }
    assert_exact(sum(alone.values()), np.asarray(total))
    assert all(np.abs(error).max() > 0 for error in alone.values())
    # A scale that is no power of two saturates nothing.
    scale = dataclasses.replace(scaling, scale_format="float32", errors=("saturation",))
    np.testing.assert_allclose(quantize(x, "e2m1", scaling=scale), x, rtol=1e-6)


def test_four_over_six_takes_the_smaller_error_of_each_block():
    x = np.float32(np.random.default_rng(4).standard_normal((64, 96)))
    scaling = SCALINGS["nvfp4-four-over-six"]

    def error(scaling):
        return ((np.asarray(quantize(x, "e2m1", scaling=scaling)) - x) ** 2).reshape(64, 6, 16).sum(-1)

    found = error(scaling)
    upper = np.abs(x).max() / np.float32(6 * 256)
    # Amax to 6 with the same tensor scale.
    six = error(dataclasses.replace(SCALINGS["nvfp4"], given=upper))
    assert (found <= six * (1 + 1e-6)).all()
    assert 0.2 < (found < six * 0.999).mean() < 0.8
    assert found.sum() < 0.95 * error(SCALINGS["nvfp4"]).sum()
    with pytest.raises(ValueError, match="scale_format must be 'e4m3' for the rule"):
        Scaling("block", block=16, rule="four_over_six")


def test_nvfp4_equals_torchao():
    elements, scale, upper = quantize_with_scale(X[-5:], "e2m1", scaling="nvfp4")
    assert_exact(scale, GOLDENS["nvfp4/levels"] * GOLDENS["nvfp4/tensor_scale"])
    assert_exact(upper, np.float32(GOLDENS["nvfp4/tensor_scale"]).reshape(1, 1))
    np.testing.assert_array_equal(elements, GOLDENS["nvfp4/elements"])


def test_division_is_exact_when_compiled():
    rng = np.random.default_rng(0)
    x = np.float32(rng.standard_normal((512, 64)) * 2.0 ** rng.integers(-20, 20, (512, 1)))
    amax = np.abs(x).max(axis=-1, keepdims=True)
    compiled = jax.jit(lambda x, amax: divide(x, divide(amax, jnp.float32(448))))(x, amax)
    exact = x / (amax / np.float32(448))
    assert_exact(compiled, exact)
    # The plain form does differ: this is what `divide` is for.
    plain = jax.jit(lambda x, amax: x / (amax / jnp.float32(448)))(x, amax)
    assert (np.asarray(plain) != exact).mean() > 0.01


QUOTIENT_OF_QUOTIENT = jax.jit(lambda x, s, t: divide(divide(x, s), t))


@given(arrays(np.float32, (3, 64), elements=st.floats(2.0**-30, 2.0**30, width=32)))
def test_two_divisions_round_twice_when_compiled(operands):
    x, s, t = operands
    assert_exact(QUOTIENT_OF_QUOTIENT(x, s, t), x / s / t)


def test_division_has_the_gradient_of_a_quotient():
    x, s = np.float32([3.0, -0.5, 7.0]), np.float32([0.5, 4.0, 0.125])
    to_x, to_s = jax.grad(lambda x, s: jnp.sum(divide(x, s)), (0, 1))(x, s)
    assert_exact(to_x, 1 / s)
    assert_exact(to_s, -x / s**2)


def test_nvfp4_scale_of_a_tie_is_right_when_compiled():
    # 0.71875 / 6 over the scale of the tensor is midway between two E4M3 numbers, but only if rounded twice.
    x = np.full((4, 16), 0.1, np.float32)
    x[0, 0], x[1:, 0] = 3.5, 0.71875
    expected, _, _ = quantize_ref(x, FORMATS["e2m1"], SCALINGS["nvfp4"])
    assert_exact(jax.jit(lambda x: quantize(x, "e2m1", scaling="nvfp4"))(x), expected)


def test_product_is_rounded_before_a_sum():
    x = np.random.default_rng(1).standard_normal((256, 32), np.float32)
    shift = jnp.float32(0.1)
    fused = jax.jit(lambda x: quantize(x, "e4m3fn", scaling="per-token") + shift)(x)
    assert_exact(fused, np.asarray(quantize(x, "e4m3fn", scaling="per-token")) + np.float32(shift))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("per-tensor", (1, 1, 1)),
        ("per-token", (2, 8, 1)),
        ("per-channel", (2, 1, 100)),
        ("mxfp8", (2, 8, 4)),
        ("deepseek-128x128", (2, 1, 1)),
    ],
)
def test_shape_of_the_scale(name, shape):
    x = jnp.ones((2, 8, 100))
    assert quantize_with_scale(x, "e4m3fn", scaling=name).scale.shape == shape
    assert SCALINGS[name].scale_shape(x.shape) == shape


def test_without_scaling_the_scale_is_one():
    made = quantize_with_scale(jnp.ones((3, 4)), "e4m3fn")
    assert_exact(made.scale, np.ones((1, 1), np.float32))


def test_blocks_of_zeros_have_scale_one_and_stay_zero():
    x = np.zeros((4, 64), np.float32)
    x[0, 0], x[1] = 3.0, -0.0
    for name in ("fp8-per-token", "mxfp8", "nvfp4", "int8-per-token"):
        made = quantize_with_scale(x, "e4m3fn", scaling=name)
        assert (np.asarray(made.scale)[1:] == 1).all()
        assert_exact(quantize(x, "e4m3fn", scaling=name)[1:], x[1:])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["fp8-per-token", "mxfp8", "deepseek-128x128"])
def test_non_numbers_poison_their_block_and_no_other(name, bad):
    x = np.random.default_rng(3).standard_normal((256, 256), np.float32)
    clean = np.asarray(quantize(x, "e4m3fn", scaling=name))
    x[1, 3] = bad
    made = np.asarray(quantize(x, "e4m3fn", scaling=name))
    same_block = np.zeros(x.shape, bool)
    block = SCALINGS[name].block_shape(x.shape)
    same_block[1 // block[0] * block[0] :, :][: block[0], : block[1]] = True
    assert np.isnan(made[same_block]).all()
    assert_exact(made[~same_block], clean[~same_block])


def test_non_numbers_poison_all_of_two_levels():
    x = np.ones((64, 64), np.float32)
    for bad in (np.inf, np.nan):
        x[1, 3] = bad
        assert np.isnan(quantize(x, "e2m1", scaling="nvfp4")).all()


@pytest.mark.parametrize("block", [(1, 1), (1, 64), (256, 1), (16, 16), (256, 64)])
def test_amax_sees_nan_and_both_signs(block):
    x = np.random.default_rng(9).standard_normal((256, 64), np.float32)
    x[5, 7], x[9, 9] = np.nan, -7.0
    split = x.reshape(256 // block[0], block[0], 64 // block[1], block[1])
    assert_exact(jax.jit(block_amax, static_argnums=1)(x, block), np.abs(split).max(axis=(1, 3)))


def test_rceil_never_saturates_and_floor_does():
    x = np.abs(np.random.default_rng(4).standard_normal((64, 256), np.float32))
    saturated = {}
    for rule in E8M0_RULES:
        made = quantize_with_scale(
            x, "e4m3fn", overflow="format", scaling=dataclasses.replace(E8M0_32, rule=rule)
        )
        saturated[rule] = np.isnan(np.asarray(made.elements)).mean()
    assert saturated["rceil"] == saturated["ceil"] == 0
    assert saturated["floor"] > 0


def test_truncation_keeps_most_of_the_largest_elements():
    # amax / (amax / 448) is 448 or one rounding away; the reciprocal form loses about 58% of them.
    x = np.random.default_rng(6).standard_normal((4096, 16), np.float32)
    made = quantize_with_scale(x, "e4m3fn", rounding="toward_zero", scaling="per-token")
    assert (np.abs(made.elements).max(axis=-1) == 448).mean() > 0.85


@given(
    st.integers(0, 2**32 - 1),
    st.integers(-40, 40),
    st.sampled_from(["per-tensor", "per-token", "mxfp8", "mxfp8-rceil", "nvfp4", "int8-per-channel"]),
    st.sampled_from(["e4m3fn", "e2m1", "int8"]),
)
@settings(max_examples=30)
def test_powers_of_two_pass_through(seed, power, name, fmt):
    x = np.random.default_rng(seed).standard_normal((4, 48), np.float32)
    factor = np.float32(2.0) ** power
    assert_exact(quantize(x * factor, fmt, scaling=name), quantize(x, fmt, scaling=name) * factor)


@given(st.integers(0, 2**32 - 1), st.sampled_from([n for n in SCALINGS if n not in ("none", "nvfp4")]))
@settings(max_examples=30)
def test_error_is_within_half_a_quantum_of_the_block(seed, name):
    # |element error| <= u max(|element|, 2^emin) with u = 2^-4; the division and the product round by 2^-24
    # each. Elements beyond 448 saturate by less than 512 - 448 = 64 under the floor rule.
    x = np.random.default_rng(seed).standard_normal((4, 160), np.float32)
    made = quantize_with_scale(x, "e4m3fn", scaling=name)
    scale = np.asarray(expand_scale(made.scale, x.shape, SCALINGS[name]), np.float64)
    ratio = np.abs(x / scale)
    bound = np.maximum(2.0**-4 * np.maximum(ratio, 2.0**-6), ratio - 448) + 2.0**-22 * ratio
    error = np.abs(np.asarray(quantize(x, "e4m3fn", scaling=name), np.float64) - x) / scale
    assert (error <= bound).all()


def test_scales_multiply_back_exactly_or_flush():
    assert_exact(multiply(jnp.float32([0.5, -0.5]), jnp.float32(2.0**-126)), np.float32([0.0, -0.0]))


def test_given_scales_are_traced_data():
    x = rows()[:1]
    scales = jnp.float32([0.25, 0.5])
    made = jax.vmap(lambda s: quantize(x, "e4m3fn", scaling=Scaling("tensor", given=s)))(scales)
    for row, s in zip(made, scales, strict=True):
        assert_exact(row, quantize(x, "e4m3fn", scaling=Scaling("tensor", given=float(s))))


def test_scale_of_one_batch_serves_another():
    first, second = rows()[:2, :8]
    scale = find_scale(first, FORMATS["int8"], SCALINGS["per-tensor"])
    fixed = dataclasses.replace(SCALINGS["per-tensor"], given=scale)
    made = quantize_with_scale(second, "int8", scaling=fixed)
    assert_exact(made.scale, scale)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"granularity": "row"}, "granularity must be one of none, tensor, token"),
        (
            {"granularity": "tensor", "scale_format": "e5m3"},
            "scale_format must be one of float32, e8m0, e4m3, got",
        ),
        ({"granularity": "tensor", "rule": "round"}, "rule must be one of floor, ceil, rceil, even"),
        ({"granularity": "token", "block": 32}, "granularity must be 'block' for a block of 32, got 'token'"),
        ({"granularity": "tensor", "min_scale": -1.0}, "min_scale must be a finite number >= 0, got -1.0"),
        *[
            ({"granularity": "block", "block": b}, "integer >= 1")
            for b in (0, -3, 2.0, True, None, (), (8, 0), "8")
        ],
    ],
)
def test_bad_scalings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Scaling(**arguments)


@pytest.mark.parametrize("scaling", ["per-channel", "deepseek-128x128"])
def test_too_few_axes_are_refused(scaling):
    with pytest.raises(ValueError, match=r"granularity must .* for x of shape \(5,\), got \w+ along axis -2"):
        quantize(jnp.ones(5), "e4m3fn", scaling=scaling)


def test_given_scale_of_another_shape_is_refused():
    with pytest.raises(
        ValueError, match=r"given must have a shape that broadcasts to \(3, 1\), got \(4, 1\)"
    ):
        quantize(jnp.ones((3, 4)), "e4m3fn", scaling=Scaling("token", given=jnp.ones((4, 1))))


def test_presets_use_every_scale_format():
    assert {scaling.scale_format for scaling in SCALINGS.values()} == set(SCALE_FORMATS)
