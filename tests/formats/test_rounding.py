"""The kernel against ml_dtypes, gfloat and the scalar oracle, and against itself traced and mapped."""

import gfloat
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gfloat import formats as gfloat_formats
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export

from simlab.formats.bit_constants import is_on_host, prepare_format
from simlab.formats.catalog import FORMATS
from simlab.formats.format import stack
from simlab.formats.rounding import round_to_format
from simlab.formats.rounding_modes import OVERFLOWS, ROUNDINGS, Rounding
from tests.formats.strategies import (
    DETERMINISTIC,
    ML_DTYPES,
    all_bfloat16,
    custom_formats,
    edge_values,
    format_names,
    overflow_names,
    random_bit_patterns,
    rounding_names,
)
from tests.oracles.rounding_ref import round_ref
from tests.strategies import float32_bit_patterns
from tests.tolerances import assert_exact


def on_device(record):
    """The record with traced leaves, so that all formats share one compilation."""
    return jax.tree.map(jnp.asarray, record)


def kernel(x, name: str, rounding: str = "nearest_even", overflow: str = "saturate", key=None):
    """Round on device in chunks of one shape, whatever the length of x."""
    chunk = 2**16
    padded = np.pad(x, (0, -x.size % chunk)).reshape(-1, chunk)
    fmt, rule = on_device(FORMATS[name]), jnp.asarray(OVERFLOWS[overflow])
    mode = on_device(ROUNDINGS[rounding])
    return np.concatenate([np.asarray(round_to_format(row, fmt, mode, rule, key)) for row in padded])[
        : x.size
    ]


def cast(x, name: str):
    with np.errstate(all="ignore"):
        return x.astype(ML_DTYPES[name]).astype(np.float32)


# ml_dtypes


@pytest.mark.parametrize("name", ML_DTYPES)
def test_equals_ml_dtypes_on_every_bfloat16_and_every_edge(name):
    for x in (all_bfloat16(), edge_values(FORMATS[name])):
        assert_exact(kernel(x, name, overflow="format"), cast(x, name))


@pytest.mark.parametrize("name", ML_DTYPES)
def test_equals_ml_dtypes_on_random_bits(name):
    x = random_bit_patterns(10**6, seed=1)
    assert_exact(kernel(x, name, overflow="format"), cast(x, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ML_DTYPES)
def test_equals_ml_dtypes_on_ten_million_random_bits(name):
    x = random_bit_patterns(10**7, seed=2)
    assert_exact(kernel(x, name, overflow="format"), cast(x, name))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_integers_round_then_clip(name):
    x = np.concatenate([all_bfloat16(), edge_values(FORMATS[name])])
    low, high = float(FORMATS[name].min_finite), float(FORMATS[name].max_finite)
    for overflow, nan in (("saturate", np.nan), ("format", 0.0)):
        # + 0 drops the sign of zero, which integers do not have.
        expected = np.where(np.isnan(x), np.float32(nan), np.clip(np.rint(x), low, high) + np.float32(0))
        assert_exact(kernel(x, name, overflow=overflow), expected.astype(np.float32))


# gfloat


def _gfloat_format(name: str, k: int, precision: int, bias: int, nans: int, **changes) -> gfloat.FormatInfo:
    fields = {
        "has_nz": True,
        "domain": gfloat.Domain.Extended,
        "num_high_nans": nans,
        "has_subnormals": True,
        "is_signed": True,
        "is_twos_complement": False,
    }
    return gfloat.FormatInfo(name, k, precision, bias=bias, **(fields | changes))


FINITE = {"domain": gfloat.Domain.Finite}
TWOS_COMPLEMENT = FINITE | {"has_nz": False, "is_twos_complement": True}
GFLOAT = {
    "tf32": _gfloat_format("tf32", 19, 11, 127, 2**10 - 1),
    "bf16": gfloat_formats.format_info_bfloat16,
    "fp16": gfloat_formats.format_info_binary16,
    "e5m2": gfloat_formats.format_info_ocp_e5m2,
    "e4m3": _gfloat_format("e4m3", 8, 4, 7, 7),
    "e3m4": _gfloat_format("e3m4", 8, 5, 3, 15),
    "e4m3fn": gfloat_formats.format_info_ocp_e4m3,
    "e4m3fnuz": _gfloat_format("e4m3fnuz", 8, 4, 8, 0, has_nz=False, **FINITE),
    "e5m2fnuz": _gfloat_format("e5m2fnuz", 8, 3, 16, 0, has_nz=False, **FINITE),
    "e8m0": gfloat_formats.format_info_ocp_e8m0,
    "e3m2": gfloat_formats.format_info_ocp_e3m2,
    "e2m3": gfloat_formats.format_info_ocp_e2m3,
    "e2m1": gfloat_formats.format_info_ocp_e2m1,
    "int8": _gfloat_format("int8", 8, 8, -6, 0, **TWOS_COMPLEMENT),
    "int4": _gfloat_format("int4", 4, 4, -2, 0, **TWOS_COMPLEMENT),
}
MODES = {
    "nearest_even": gfloat.RoundMode.TiesToEven,
    "nearest_away": gfloat.RoundMode.TiesToAway,
    "toward_zero": gfloat.RoundMode.TowardZero,
    "up": gfloat.RoundMode.TowardPositive,
    "down": gfloat.RoundMode.TowardNegative,
}


def gfloat_cases(name: str) -> np.ndarray:
    """All cases of the ml_dtypes tests, without what gfloat does not define."""
    x = np.concatenate(
        [all_bfloat16(), edge_values(FORMATS[name], per_binade=256), random_bit_patterns(2**16, 3)]
    )
    if name == "e8m0":
        # gfloat's e8m0 goes on below 2^-127 and takes zero and -1 as they are.
        return x[(x >= np.float32(2.0**-126)) & np.isfinite(x)]
    return x


@pytest.mark.parametrize("name", GFLOAT)
def test_equals_gfloat_in_every_mode(name):
    x = gfloat_cases(name)
    for rounding, mode in MODES.items():
        if name == "e8m0" and rounding == "nearest_even":
            continue  # gfloat takes ties to the even exponent, ml_dtypes (and we) upwards
        for overflow in OVERFLOWS:
            if overflow == "format" and np.isfinite(FORMATS[name].overflow_value):
                continue  # raises in gfloat
            saturate = overflow == "saturate"
            expected = gfloat.round_ndarray(GFLOAT[name], x.astype(np.float64), mode, sat=saturate)
            assert_exact(kernel(x, name, rounding, overflow), expected.astype(np.float32))


# The oracle


def oracle(x, fmt, rounding: str, overflow: str) -> np.ndarray:
    return np.array([round_ref(value, fmt, rounding, overflow) for value in x])


@pytest.mark.parametrize("name", FORMATS)
def test_equals_the_oracle_around_every_edge(name):
    edges = edge_values(FORMATS[name], per_binade=32)
    rng = np.random.default_rng(4)
    for rounding in DETERMINISTIC:
        x = rng.choice(edges, min(edges.size, 400), replace=False)
        for overflow in OVERFLOWS:
            expected = oracle(x, FORMATS[name], rounding, overflow)
            assert_exact(kernel(x, name, rounding, overflow), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_equals_the_oracle_on_every_bfloat16(name):
    x = all_bfloat16()
    for rounding in DETERMINISTIC:
        assert_exact(kernel(x, name, rounding, "format"), oracle(x, FORMATS[name], rounding, "format"))


@settings(max_examples=500)
@given(
    custom_formats(),
    st.lists(float32_bit_patterns(), min_size=8, max_size=8),
    rounding_names(),
    overflow_names(),
)
def test_any_format_equals_the_oracle(fmt, values, rounding, overflow):
    near_range = [np.float32(np.ldexp(1.0 + i / 7, int(fmt.min_exponent) - 4 + 2 * i)) for i in range(8)]
    x = np.array(values + near_range, np.float32)
    actual = round_to_format(
        x, on_device(fmt), on_device(ROUNDINGS[rounding]), jnp.asarray(OVERFLOWS[overflow])
    )
    assert_exact(np.asarray(actual), oracle(x, fmt, rounding, overflow))


# Identities


@given(format_names(), float32_bit_patterns(), rounding_names(), overflow_names())
def test_rounding_twice_is_rounding_once(name, value, rounding, overflow):
    once = kernel(np.array([value]), name, rounding, overflow)
    if np.isnan(once).any() or np.isinf(once).any():
        return
    for again in DETERMINISTIC:
        assert_exact(kernel(once, name, again, overflow), once)


def test_fp32_is_left_alone_to_the_last_payload_bit():
    x = np.concatenate([random_bit_patterns(2**16, 5), edge_values(FORMATS["bf16"])])
    for rounding in DETERMINISTIC:
        for overflow in OVERFLOWS:
            assert_exact(kernel(x, "fp32", rounding, overflow), x, nan_payload=True)


# Traced, static, mapped, eager


def test_one_compilation_serves_all_formats_modes_and_rules():
    traces = []

    @jax.jit
    def sweep(x, formats, roundings, rules):
        traces.append(x.shape)
        by_rule = jax.vmap(round_to_format, (None, None, None, 0))
        by_rounding = jax.vmap(by_rule, (None, None, 0, None))
        return jax.vmap(by_rounding, (None, 0, None, None))(x, formats, roundings, rules)

    x = np.concatenate([edge_values(FORMATS["e4m3fn"]), all_bfloat16()[::16], random_bit_patterns(2048, 6)])
    roundings = [ROUNDINGS[name] for name in DETERMINISTIC]
    for names in (list(FORMATS), list(FORMATS)[::-1]):
        grid = np.asarray(
            sweep(
                x,
                stack([FORMATS[name] for name in names]),
                stack(roundings),
                jnp.stack([jnp.asarray(rule) for rule in OVERFLOWS.values()]),
            )
        )
        for i, name in enumerate(names):
            for j, rounding in enumerate(DETERMINISTIC):
                for k, overflow in enumerate(OVERFLOWS):
                    expected = kernel(x, name, rounding, overflow)
                    assert_exact(grid[i, j, k], expected, nan_payload=True)
    assert len(traces) == 1
    assert sweep._cache_size() == 1


def test_constants_of_the_host_equal_traced_ones():
    traced = jax.jit(lambda *numbers: prepare_format(*numbers).constants)
    for fmt in FORMATS.values():
        for rounding in ROUNDINGS.values():
            for rule in OVERFLOWS.values():
                numbers = fmt, rounding, rule
                host = prepare_format(*numbers).constants
                assert is_on_host(host)
                assert jax.tree.map(int, traced(*on_device(numbers))) == host


def test_rounding_has_few_array_operations():
    x = jnp.zeros(8)
    rule = OVERFLOWS["saturate"]

    def count(fmt, mode) -> int:
        program = jax.make_jaxpr(round_to_format)(x, fmt, *on_device((mode, rule)))
        equations = [eq for eq in flat_equations(program.jaxpr) if eq.outvars[0].aval.shape == x.shape]
        return sum(eq.primitive.name != "broadcast_in_dim" for eq in equations)

    for mode, known in (("nearest_even", 21), ("toward_zero", 30)):
        fmt, mode = FORMATS["e4m3fn"], ROUNDINGS[mode]
        assert count(on_device(fmt), mode) <= 33
        assert count(prepare_format(fmt, mode, rule), mode) <= known


def flat_equations(jaxpr):
    for eq in jaxpr.eqns:
        inner = eq.params.get("jaxpr")
        yield from flat_equations(inner.jaxpr) if inner is not None else (eq,)


STATIC_CASES = [(name, "nearest_even", "saturate") for name in FORMATS]
STATIC_CASES += [("e4m3fn", rounding, "format") for rounding in DETERMINISTIC]
STATIC_CASES += [("bf16", "up", "format"), ("e4m3fnuz", "up", "saturate"), ("e8m0", "toward_zero", "format")]


@pytest.mark.parametrize(("name", "rounding", "overflow"), STATIC_CASES)
def test_static_equals_traced(name, rounding, overflow):
    x = np.concatenate([all_bfloat16(), random_bit_patterns(2**16, 7)])
    # Everything but x is a constant of the program, which the compiler may fold.
    static = jax.jit(lambda x: round_to_format(x, FORMATS[name], rounding, overflow))(x)
    assert_exact(np.asarray(static), kernel(x, name, rounding, overflow), nan_payload=True)


@pytest.mark.parametrize("name", ["bf16", "e4m3fn", "e8m0", "int8"])
def test_operation_by_operation_equals_compiled(name):
    x = np.concatenate([all_bfloat16()[::8], random_bit_patterns(2**12, 8)])
    for rounding in DETERMINISTIC:
        with jax.disable_jit():
            eager = round_to_format(x, FORMATS[name], rounding)
        assert_exact(np.asarray(eager), kernel(x, name, rounding), nan_payload=True)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_lowers_for_every_platform(rounding):
    def rounded(x, fmt, key):
        return round_to_format(x, fmt, rounding, key=jax.random.wrap_key_data(key))

    arguments = (jnp.zeros(8), on_device(FORMATS["e4m3fn"]), jnp.zeros(2, jnp.uint32))
    flat, tree = jax.tree.flatten(arguments)
    exported = export.export(
        jax.jit(lambda *leaves: rounded(*jax.tree.unflatten(tree, leaves))), platforms=["cpu", "cuda", "tpu"]
    )(*flat)
    assert exported.platforms == ("cpu", "cuda", "tpu")


# Errors


def test_bad_input_is_refused_by_name():
    x = jnp.ones(3)
    with pytest.raises(ValueError, match=r"unknown rounding 'nearest'.*toward_zero"):
        round_to_format(x, FORMATS["bf16"], "nearest")
    with pytest.raises(ValueError, match=r"unknown overflow rule 'wrap'.*saturate"):
        round_to_format(x, FORMATS["bf16"], "up", "wrap")
    with pytest.raises(TypeError, match="float32, not int32"):
        round_to_format(jnp.arange(3), FORMATS["bf16"], "up")
    with pytest.raises(ValueError, match="needs key="):
        round_to_format(x, FORMATS["bf16"], "stochastic")
    with pytest.raises(ValueError, match=r"carries .0.3, 0.3."):
        Rounding.declare(0.3, 0.3)
    with pytest.raises(ValueError, match="ties_even"):
        Rounding.declare(1.0, 0.0, ties_even=True)
