"""Tensor cores against recorded vectors, against the scalar oracle, and what every accumulator promises."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import ENGINES, Float32Sum, Site, linear, matmul, quantize_operand
from simlab.engines.kernel_order import LastTileFirst, Promoted, SplitK
from simlab.engines.tensor_core import TENSOR_CORES, MXTensorCore, NVFP4TensorCore, TensorCore
from simlab.formats import FORMATS, stack
from tests.engines.operands import TYPES, any_bits, normal
from tests.oracles.matmul_ref import matmul_ref
from tests.oracles.tensor_core_ref import fp4_tensor_core_ref, tensor_core_ref
from tests.tolerances import assert_exact

GOLDENS = Path(__file__).parent / "goldens" / "tensor_cores.npz"
UNITS = [(architecture, fmt) for architecture, cores in TENSOR_CORES.items() for fmt in cores]
SHAPE = (6, 70, 5)  # one shape for all tests of one unit, so that each is compiled once


@cache
def goldens():
    with np.load(GOLDENS) as file:
        return dict(file)


VECTORS = sorted({name.rpartition("/")[0] for name in goldens()})


def oracle(core: TensorCore):
    numbers = {"fraction_bits": core.fraction_bits, "result_bits": core.result_bits}
    return partial(
        tensor_core_ref,
        block=core.block,
        min_exponent=int(core.min_exponent),
        **{name: int(value) for name, value in numbers.items()},
    )


def wide(seed, fmt):
    """Bit patterns of all exponents, as often as not scaled to nearly cancel, with zeros and subnormals."""
    rng = np.random.default_rng(seed)
    rows, terms, columns = SHAPE
    a, b = any_bits((rows, terms), seed, fmt), any_bits((terms, columns), seed + 1, fmt)
    a[rng.random(a.shape) < 0.1] = 0
    tiny = float(np.dtype(TYPES[fmt]).type(2.0 ** int(FORMATS[fmt].min_exponent) / 2))
    a[rng.random(a.shape) < 0.1] = tiny
    b[rng.random(b.shape) < 0.1] = -tiny
    return a, b


def draw_cancelling(seed, fmt):
    """Every second product undoes the one before but for the last bit of a factor."""
    rows, terms, columns = SHAPE
    a, b = normal((rows, terms), seed, fmt, spread=4), normal((terms, columns), seed + 1, fmt, spread=4)
    a[:, 1::2] = -a[:, ::2]
    b[1::2] = (b[::2] * np.float32(1 + 2.0**-7)).astype(TYPES[fmt]).astype(np.float32)
    return a, b


def special(seed, fmt):
    """Infinities where the format has them, NaN, and zeros for them to meet."""
    a, b = wide(seed, fmt)
    rng = np.random.default_rng(seed)
    values = [np.nan] if fmt == "e4m3fn" else [np.nan, np.inf, -np.inf, np.inf]
    for x in (a, b):
        x[rng.random(x.shape) < 0.02] = rng.choice(values)
    return a, b


def test_the_vectors_are_all_there():
    assert len(VECTORS) == 30
    assert {name.split("/")[0].replace("e4m3", "e4m3fn") for name in VECTORS} <= {"-".join(u) for u in UNITS}


@pytest.mark.parametrize("name", VECTORS)
def test_recorded_vectors_are_reproduced(name):
    architecture, fmt = name.split("/")[0].replace("e4m3", "e4m3fn").split("-")
    a, b, expected = (goldens()[f"{name}/{x}"] for x in "abd")
    assert_exact(matmul(jnp.asarray(a), jnp.asarray(b), accumulator=architecture, format=fmt), expected)
    rows = slice(None, None, len(a) // 4)
    assert_exact(matmul_ref(a[rows], b, oracle(TENSOR_CORES[architecture][fmt])), expected[rows])


@pytest.mark.parametrize("operands", [wide, draw_cancelling, special])
@pytest.mark.parametrize(("architecture", "fmt"), UNITS)
def test_random_operands_equal_the_oracle(architecture, fmt, operands):
    core = TENSOR_CORES[architecture][fmt]
    for seed in (0, 1):
        a, b = operands(seed, fmt)
        actual = np.asarray(matmul(jnp.asarray(a), jnp.asarray(b), accumulator=architecture, format=fmt))
        assert_exact(actual, matmul_ref(a, b, oracle(core)))
        assert np.isfinite(actual).all() or operands is special or fmt == "bf16"


def test_subnormal_and_infinite_sums_of_bf16():
    """Sums at both ends of float32, which flushing or another overflow would change."""
    rng = np.random.default_rng(3)
    low = normal((4, 48), 1, spread=3) * np.float32(2.0**-70)
    high = normal((4, 48), 2, spread=3) * np.float32(2.0**63)
    for a, b in ((low, normal((48, 4), 5, spread=8) * np.float32(2.0**-66)), (high, high.T.copy())):
        a[rng.random(a.shape) < 0.3] = 0
        expected = matmul_ref(a, b, oracle(TENSOR_CORES["hopper"]["bf16"]))
        assert_exact(matmul(jnp.asarray(a), jnp.asarray(b), accumulator="hopper", format="bf16"), expected)
        ends = (np.abs(expected) < 2.0**-126) & (expected != 0) if b.max() < 1 else np.isinf(expected)
        assert ends.any()


@pytest.mark.parametrize(("architecture", "fmt"), [("hopper", "fp16"), ("blackwell", "e5m2")])
def test_the_largest_sums_of_a_block_fit(architecture, fmt):
    """Significands of nearly 2 and one sign: 16 products of just below 2^27 units, 32 above int32."""
    largest = np.float32(2 - 2.0 ** -int(FORMATS[fmt].mantissa_bits))
    a, b = np.full((2, 70), largest), np.full((70, 2), largest)
    a[1] *= -1
    expected = matmul_ref(a, b, oracle(TENSOR_CORES[architecture][fmt]))
    assert_exact(matmul(jnp.asarray(a), jnp.asarray(b), accumulator=architecture, format=fmt), expected)


def test_memory_is_that_of_the_operands_and_the_result():
    n = 512
    operands = [jax.ShapeDtypeStruct((n, n), jnp.float32)] * 2
    program = jax.jit(lambda a, b: TENSOR_CORES["hopper"]["bf16"].dot(a, b)).lower(*operands).compile()
    # Both operands split in two, and copies of a few of them and of the result: far from n^3.
    assert program.memory_analysis().temp_size_in_bytes < 16 * 4 * n**2


def test_a_zero_counts_with_the_exponent_of_its_partner():
    """0 * 2^100 has exponent -126 + 100: the accumulator keeps 2^-26 2^-25, and the product 2^-60 is lost."""
    a, b = jnp.asarray([[0.0, 2.0**-30]]), jnp.asarray([[2.0**100], [2.0**-30]])
    assert matmul(a, b, accumulator="hopper", format="bf16")[0, 0] == 0
    assert matmul(a, b.at[0].set(1.0), accumulator="hopper", format="bf16")[0, 0] == 2.0**-60


@pytest.mark.parametrize(("architecture", "fmt"), [("volta", "fp16"), ("hopper", "e4m3fn")])
def test_compiled_mapped_and_by_rows_it_is_the_same(architecture, fmt):
    a, b = (jnp.asarray(x) for x in special(7, fmt))
    multiply = partial(matmul, accumulator=architecture, format=fmt)
    expected = np.asarray(multiply(a, b))
    assert_exact(jax.jit(multiply)(a, b), expected)
    assert_exact(jax.vmap(multiply, (0, None))(a, b), expected)
    assert_exact(jax.vmap(multiply, (None, 2), 1)(a, b[:, None])[..., 0], expected)
    assert_exact(multiply(a[None], b)[0], expected)
    for part in (slice(0, 1), slice(3, 6)):
        assert_exact(multiply(a[part], b), expected[part])


def test_zeros_at_the_end_change_nothing():
    a, b = wide(8, "fp16")
    expected = np.asarray(matmul(jnp.asarray(a), jnp.asarray(b), accumulator="ampere", format="fp16"))
    a, b = np.pad(a, ((0, 0), (0, 90))), np.pad(b, ((0, 90), (0, 0)))
    assert_exact(matmul(jnp.asarray(a), jnp.asarray(b), accumulator="ampere", format="fp16"), expected)


@pytest.mark.parametrize("operands", [draw_cancelling, special])
def test_gradient_is_that_of_the_float32_product(operands):
    a, b = (jnp.asarray(x) for x in operands(0, "e4m3fn"))
    weights = jnp.asarray(normal((6, 5), 2))
    loss = lambda a, b: jnp.sum(weights * matmul(a, b, accumulator="hopper", format="e4m3fn"))  # noqa: E731
    plain = lambda a, b: jnp.sum(weights * (a @ b))  # noqa: E731
    gradients = jax.jit(jax.grad(loss, (0, 1)))(a, b)
    for actual, expected in zip(gradients, jax.jit(jax.grad(plain, (0, 1)))(a, b), strict=True):
        assert_exact(actual, np.asarray(expected))
    stacked = jax.vmap(jax.grad(loss), (0, None))(jnp.stack([a, 2 * a]), b)
    assert_exact(stacked[1], np.asarray(gradients[0]))


def test_bits_of_the_adder_are_data():
    a, b = draw_cancelling(4, "bf16")
    cores = [
        TensorCore(16, np.int32(kept), np.int32(result), np.int32(-126))
        for kept, result in ((25, 23), (13, 13), (14, 7), (3, 2))
    ]
    compiled = []

    @jax.jit
    def multiply(core):
        compiled.append(1)
        return matmul(jnp.asarray(a), jnp.asarray(b), accumulator=core)

    together = jax.jit(jax.vmap(multiply))(stack(cores))
    for core, mapped in zip(cores, together, strict=True):
        expected = matmul_ref(a, b, oracle(core))
        assert_exact(mapped, expected)
        assert_exact(multiply(core), expected)
    assert len(compiled) == 1


def in_order(a, b, ranges, dot):
    """Float32 sum, from left to right, of `dot` over the given ranges of K."""
    total = np.float32(0)
    for first, last in ranges:
        total = np.float32(total + dot(a[first:last], b[first:last]))
    return total


HOPPER_FP8 = TENSOR_CORES["hopper"]["e4m3fn"]


@pytest.mark.parametrize(
    ("order", "ranges"),
    [
        (Promoted(HOPPER_FP8, 32), [(0, 32), (32, 64), (64, 70)]),
        (Promoted(HOPPER_FP8, 40), [(0, 40), (40, 70)]),
        (Promoted(HOPPER_FP8), [(0, 70)]),
        (SplitK(HOPPER_FP8, 2), [(0, 64), (64, 70)]),
        (SplitK(HOPPER_FP8, 4, tile=8), [(0, 24), (24, 48), (48, 70)]),
        (SplitK(HOPPER_FP8, 9), [(0, 32), (32, 64), (64, 70)]),
    ],
)
def test_orders_above_the_instruction_equal_the_oracle(order, ranges):
    a, b = normal((6, 70), 3, "e4m3fn", spread=3), normal((70, 5), 4, "e4m3fn", spread=3)
    expected = matmul_ref(a, b, partial(in_order, ranges=ranges, dot=oracle(HOPPER_FP8)))
    assert_exact(matmul(jnp.asarray(a), jnp.asarray(b), accumulator=order), expected)
    alone = np.asarray(matmul(jnp.asarray(a), jnp.asarray(b), accumulator=HOPPER_FP8))
    assert (expected != alone).any() == (len(ranges) > 1)


def test_the_last_tile_comes_first():
    a, b = normal((6, 70), 5, "bf16", spread=3), normal((70, 5), 6, "bf16", spread=3)
    core = TENSOR_CORES["ampere"]["bf16"]
    order = [*range(64, 96), *range(32, 64), *range(32)]
    turned_a, turned_b = np.pad(a, ((0, 0), (0, 26)))[:, order], np.pad(b, ((0, 26), (0, 0)))[order]
    expected = matmul_ref(turned_a, turned_b, oracle(core))
    assert_exact(matmul(jnp.asarray(a), jnp.asarray(b), accumulator=LastTileFirst(core, 32)), expected)
    alone = np.asarray(matmul(jnp.asarray(a), jnp.asarray(b), accumulator=core))
    assert (expected != alone).any()


def test_promotion_undoes_most_of_what_thirteen_bits_lose():
    a, b = normal((32, 1024), 7, "e4m3fn"), normal((1024, 32), 8, "e4m3fn")
    exact = a.astype(np.float64) @ b.astype(np.float64)

    def error(accumulator):
        return np.abs(
            np.asarray(matmul(jnp.asarray(a), jnp.asarray(b), accumulator=accumulator)) - exact
        ).mean()

    alone, promoted = error(HOPPER_FP8), error(Promoted(HOPPER_FP8))
    wide_accumulator = error(TENSOR_CORES["blackwell"]["e4m3fn"])
    # Partial sums of 128 instead of 1024 terms: errors of a third or less; 2^-12 of that with 25 bits.
    assert promoted < alone / 2
    assert wide_accumulator < promoted / 500


def test_mx_blocks_keep_the_exponents_of_their_subnormals():
    """Against the oracle with scales apart: elements from subnormals to 448, scales 2^-20 to 2^20."""
    rng = np.random.default_rng(9)
    fmt, blocks = "e4m3fn", 3
    elements = [any_bits((5, 32 * blocks), seed, fmt) for seed in (10, 11)]
    for side in elements:
        side *= rng.random(side.shape) < 0.8
        side[:, ::32] = rng.choice([256, 320, 448, -448], (5, blocks))  # as the floor rule has it
        side[:, 1::32] = 2.0**-9
    scales = [rng.integers(-20, 21, (5, blocks)) for _ in elements]
    a, b = (x * 2.0 ** np.repeat(s, 32, 1) for x, s in zip(elements, scales, strict=True))
    core = TENSOR_CORES["blackwell"][fmt]
    actual = MXTensorCore(core, np.int32(14)).dot(jnp.float32(a), jnp.float32(b.T))
    expected = [
        [
            oracle(core)(
                elements[0][i], elements[1][j], scales=np.repeat(scales[0][i] + scales[1][j], 32).tolist()
            )
            for j in range(5)
        ]
        for i in range(5)
    ]
    assert_exact(actual, np.array(expected, np.float32))


@pytest.mark.parametrize("scales", ["wide", "far"])
def test_recorded_fp4_outputs_are_reproduced(scales):
    """MMA-Sim's tcgen05, mxf4nvf4 with ue4m3 scales of 16; some outputs of `far` need 35 bits, not 36."""
    with np.load(GOLDENS.with_name("fp4_tensor_core.npz")) as file:
        a, b, a_scales, b_scales, d = (
            file[f"{scales}/{x}"].astype(np.float32) for x in ("a", "b", "a_scales", "b_scales", "d")
        )
    a, b = (jnp.asarray(x * np.repeat(s, 16, 1)) for x, s in ((a, a_scales), (b, b_scales)))
    assert_exact(matmul(a, b.T, accumulator=NVFP4TensorCore()), d)
    wider = np.asarray(matmul(a, b.T, accumulator=NVFP4TensorCore(np.int32(36), np.int32(23))))
    assert (wider != d).any() == (scales == "far")


E4M3_SCALES = np.arange(1, 127, dtype=np.uint8).view(TYPES["e4m3fn"]).astype(np.float32)


def fp4_side(rng, scales):
    """E2M1 elements [5, 160] and the scale of each 16 of them, 0 for a group of zeros."""
    elements = any_bits((5, 160), int(rng.integers(1000)), "e2m1").reshape(5, 10, 16)
    elements[..., 3] = rng.choice([6, -6], (5, 10))  # as nearest rounding has it
    chosen = rng.choice(scales, (5, 10))
    elements[chosen < 2.0**-6, 3] = 3  # of a subnormal scale the exponent is known anyway
    chosen[rng.random((5, 10)) < 0.1] = 0
    elements[chosen == 0] = 0
    return elements.reshape(5, 160), chosen


@pytest.mark.parametrize(
    ("scales", "bits"),
    [
        (E4M3_SCALES[(E4M3_SCALES >= 0.5) & (E4M3_SCALES < 2)], (35, 23)),
        (E4M3_SCALES[[0, 1, 2, 119, 125]], (35, 23)),  # so far apart that the accumulator cuts something off
        (E4M3_SCALES, (9, 23)),
    ],
    ids=["near", "far", "narrow"],
)
def test_fp4_groups_equal_the_oracle_with_scales_apart(scales, bits):
    rng = np.random.default_rng(12)
    (a, a_scales), (b, b_scales) = fp4_side(rng, scales), fp4_side(rng, scales)
    oracle = partial(fp4_tensor_core_ref, fraction_bits=bits[0], result_bits=bits[1])
    sides = [(a, a_scales), (b, b_scales)]
    expected = [[oracle(a[i], b[j], a_scales[i], b_scales[j]) for j in range(5)] for i in range(5)]
    a, b = (jnp.asarray(x * np.repeat(scale, 16, 1)) for x, scale in sides)
    core = NVFP4TensorCore(*map(np.int32, bits))
    assert_exact(matmul(a, b.T, accumulator=core), np.array(expected, np.float32))
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64).T
    # One truncation of three sums to 24 bits each; anything the accumulator cuts off itself is more.
    cut_off = np.abs(np.array(expected) - exact).max() > 3 * 2.0**-23 * np.abs(exact).max()
    assert cut_off == (bits != (35, 23))
    mapped = jax.jit(jax.vmap(lambda core, a: matmul(a, b.T, accumulator=core), (0, None)))
    assert_exact(mapped(stack([core, NVFP4TensorCore()]), a)[0], np.array(expected, np.float32))
    spoiled = matmul(a.at[1, 77].set(jnp.nan), b.T, accumulator=core)
    assert np.isnan(spoiled[1]).all()
    assert_exact(spoiled[0], np.array(expected, np.float32)[0])


def test_nvfp4_engine_passes_block_scales_to_accumulator():
    """Against the oracle with all scales apart; the scales of the tensors multiply what comes out."""
    rng = np.random.default_rng(14)
    x, w = (
        jnp.asarray((rng.standard_normal(s) * 2.0 ** rng.integers(-9, 4, s)).astype(np.float32))
        for s in ((2, 3, 160), (160, 4))
    )
    x = x.at[0, 1, 32:48].set(0)
    sites = replace(ENGINES["b200-nvfp4"].projection, output=Site())
    qx, qw = quantize_operand(x, sites.activations), quantize_operand(w, sites.weights)
    uppers = [np.asarray(q.tensor_scale).reshape(()) for q in (qx, qw)]
    a, b = np.asarray(qx.elements).reshape(6, 160), np.asarray(qw.elements).T
    scales = np.asarray(qx.scale).reshape(6, 10), np.asarray(qw.scale).T
    levels = [
        (scale / upper).astype(TYPES["e4m3fn"]).astype(np.float32)
        for scale, upper in zip(scales, uppers, strict=True)
    ]
    zeros = np.repeat(levels[0], 16, 1)[a == 0]
    assert_exact((levels[0] * uppers[0])[scales[0] != 1], scales[0][scales[0] != 1])
    assert zeros.size > 16
    expected = [
        [fp4_tensor_core_ref(a[i], b[j], levels[0][i], levels[1][j]) for j in range(4)] for i in range(6)
    ]
    expected = np.float32(expected) * (uppers[0] * uppers[1])
    actual = jax.jit(lambda x: linear(x, w, sites))(x)
    assert_exact(actual, expected.reshape(2, 3, 4))
    # Scales inside the sums, which float32 adds, are another number.
    plain = linear(x, w, replace(sites, accumulator=Float32Sum()))
    assert (np.asarray(plain) != np.asarray(actual)).any()


def test_nvfp4_needs_both_levels_of_scales():
    sites = replace(ENGINES["mxfp8"].projection, accumulator=NVFP4TensorCore())
    with pytest.raises(ValueError, match=r"two levels of scales.*allowed: nvfp4"):
        linear(jnp.ones((2, 32)), jnp.ones((32, 2)), sites)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"accumulator": "hoper", "format": "bf16"},
            r"unknown accumulator 'hoper'; did you mean 'hopper'\? allowed: float32, exact",
        ),
        ({"accumulator": "volta", "format": "bf16"}, "unknown format of volta 'bf16'.*allowed: fp16"),
        ({"accumulator": "ada", "format": FORMATS["fp16"]}, "unknown format of ada 'fp16'.*e4m3fn, e5m2"),
        ({"accumulator": "hopper"}, "hopper needs the format.*allowed: fp16, bf16, e4m3fn, e5m2"),
        ({"accumulator": "hopper", "format": "e4m3fn"}, "a holds 1.03125, .*not on the grid.*allowed"),
    ],
)
def test_bad_input_is_named(arguments, message):
    a, b = jnp.full((2, 16), 1.03125), jnp.ones((16, 2))
    with pytest.raises(ValueError, match=message):
        matmul(a, b, **arguments)


def test_the_grid_is_checked_where_values_are_known():
    a, b = jnp.ones((2, 16)), jnp.full((16, 2), 449.0)
    with pytest.raises(ValueError, match="b holds 449"):
        matmul(a, b, accumulator="ada", format="e4m3fn")
    with pytest.raises(ValueError, match="b holds 449"):
        jax.jit(lambda a: matmul(a, b, accumulator="ada", format="e4m3fn"))(a)
    with pytest.raises(ValueError, match="a holds inf"):
        matmul(a.at[0, 0].set(jnp.inf), b, accumulator="ada", format="e4m3fn")
    assert jax.jit(partial(matmul, accumulator="ada", format="e4m3fn"))(a, b).shape == (2, 2)


@pytest.mark.parametrize(
    "make",
    [
        partial(Promoted, every=0),
        partial(SplitK, splits=0),
        partial(SplitK, tile=0),
        partial(LastTileFirst, tile=0),
    ],
)
def test_empty_ranges_are_refused(make):
    with pytest.raises(ValueError, match="allowed: "):
        make(HOPPER_FP8)
