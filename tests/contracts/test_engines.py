"""What every engine of the catalog promises, at every site."""

from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import (
    ENGINE_CARDS,
    ENGINE_PAIRS,
    ENGINES,
    EXACT_PAIRS,
    ExactSum,
    PartialSums,
    add_residual,
    attend,
    combine_experts,
    find_engine,
    find_pair,
    linear,
    log_softmax,
    rms_norm,
    route,
    softmax,
    static_signature,
    store,
    store_cache,
)
from simlab.engines.tensor_core import TensorCore
from simlab.formats import stack
from tests.tolerances import assert_exact
from tests.training.recipes import QUICK

rng = np.random.default_rng(0)
X = rng.standard_normal((5, 64)).astype(np.float32)
W = (rng.standard_normal((64, 40)) * 0.2).astype(np.float32)
EXPERTS = rng.standard_normal((5, 2, 64)).astype(np.float32)
CAUSAL = np.tril(np.ones((5, 5), bool))

GROUPS: dict = defaultdict(list)
for _name, _engine in ENGINES.items():
    GROUPS[static_signature(_engine)].append(_name)
SIGNATURES = [pytest.param(names, id="+".join(names)) for names in GROUPS.values()]


def forward(x, w, engine):
    """Every site once."""
    residual, read = add_residual(x, x[::-1], engine)
    h = rms_norm(read, jnp.ones_like(x[0]), engine)
    y = linear(h, w, engine)
    keys, values = store_cache(y[:, :16], engine), store_cache(y[:, 16:32], engine)
    chosen, shares = route(linear(h, w[:, :8], engine.router), engine, 2)
    logits = linear(h, w, engine.lm_head)
    return {
        "residual": residual,
        "norm": h,
        "projection": y,
        "cache": keys,
        "attention": attend(y[:, 24:], keys, values, CAUSAL, engine),
        "router": shares,
        "choice": chosen,
        "experts": combine_experts(EXPERTS, shares, engine),
        "logits": logits,
        "token_probs": softmax(logits, engine),
        "log_probs": log_softmax(logits, engine),
    }


# One engine of each kind of arithmetic; exact pairs go through all sites in tests/engines/test_attention.py.
KINDS = ("f32", "bf16", "vllm-bf16", "fp8-e4m3", "fp8-block128", "mxfp8", "nvfp4", "int8-w8a8")
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in KINDS else SLOW) for name in ENGINES]
)
def test_every_site_gives_numbers_that_belong_together(name):
    # A constant engine compiles twice as fast as a traced one, and this test needs no more.
    sites = jax.jit(lambda x, w: forward(x, w, ENGINES[name]), compiler_options=QUICK)(X, W)
    for site, value in sites.items():
        assert np.isfinite(value).all(), site
    # 40 probabilities, each rounded to 2^-9 of itself at worst.
    np.testing.assert_allclose(sites["token_probs"].sum(-1), 1, atol=2**-9)
    np.testing.assert_allclose(np.exp(sites["log_probs"]), sites["token_probs"], rtol=2**-8)
    assert (sites["router"][:, 0] >= sites["router"][:, 1]).all()


SHARED = [names for names in GROUPS.values() if len(names) > 1]


@pytest.mark.parametrize(
    "names",
    [pytest.param(names, id="+".join(names), marks=() if "fp8-e4m3" in names else SLOW) for names in SHARED],
)
def test_engines_of_one_signature_share_function_under_vmap(names):
    one = jax.jit(lambda x, w, engine: forward(x, w, engine))
    engines = [ENGINES[name] for name in names]
    together = jax.jit(jax.vmap(forward, (None, None, 0)))(X, W, stack(engines))
    for i, engine in enumerate(engines):
        for site, value in one(X, W, engine).items():
            assert_exact(np.asarray(together[site])[i], np.asarray(value))
    assert one._cache_size() == 1


@pytest.mark.parametrize("name", ENGINES)
def test_projection_is_within_its_roundings_of_float64(name):
    sites = ENGINES[name].projection
    x = np.asarray(store(jnp.asarray(X), sites.activations), np.float64)
    w = store(jnp.asarray(W), sites.weights)
    w = np.asarray(w if sites.dequantized is None else store(w, sites.dequantized), np.float64)
    actual = np.asarray(jax.jit(linear)(X, W, ENGINES[name]))
    expected, magnitude = x @ w, np.abs(x) @ np.abs(w)
    # 64 float32 additions at most and 4 products with scales (a single rounding for exact sums); partial sums
    # in BF16 round four partials and four sums by 2^-8; a stored result is rounded by 2^-8 or 2^-11 at last.
    units = 5 if isinstance(sites.accumulator, ExactSum) else 68
    error = magnitude * units * 2.0**-24
    if isinstance(sites.accumulator, PartialSums) and sites.accumulator.partial.format is not None:
        error += magnitude * 8 * 2.0**-8
    accumulator = getattr(sites.accumulator, "core", sites.accumulator)
    if isinstance(accumulator, TensorCore):
        # A block truncates its products and the running sum at 2^-F of the largest, and its sum at 2^-R.
        lost = (accumulator.block + 1) * 2.0 ** -int(accumulator.fraction_bits) + 2.0 ** -int(
            accumulator.result_bits
        )
        error += magnitude * (X.shape[1] // accumulator.block) * lost
    if sites.output.format is not None:
        error += (np.abs(expected) + error) * 2.0 ** -(int(sites.output.format.mantissa_bits) + 1)
    assert (np.abs(actual - expected) <= error).all()


@pytest.mark.parametrize("names", SIGNATURES)
def test_eager_is_jit(names):
    x, w, name = jnp.asarray(X), jnp.asarray(W), names[0]
    assert_exact(linear(x, w, name), np.asarray(jax.jit(linear)(x, w, ENGINES[name])))
    assert_exact(softmax(x, name), np.asarray(jax.jit(softmax)(x, ENGINES[name])))


@pytest.mark.parametrize("names", SIGNATURES)
def test_core_lowers_for_every_platform(names):
    def core(x, w, engine):
        return softmax(linear(x, w, engine), engine), jax.grad(lambda w: jnp.sum(linear(x, w, engine)))(w)

    exported = jax.export.export(jax.jit(core), platforms=["cpu", "cuda", "tpu"])(X, W, ENGINES[names[0]])
    assert exported.platforms == ("cpu", "cuda", "tpu")


def test_f32_is_plain_jax():
    f32 = ENGINES["f32"]
    assert_exact(linear(jnp.asarray(X), jnp.asarray(W), f32), np.asarray(X @ jnp.asarray(W)))
    for site in ("residual", "elementwise", "router_weights"):
        assert getattr(f32, site).format is None
    assert not jax.tree.leaves(f32)


def test_16_bit_engines_and_fp8_doses_share_a_signature():
    assert ["bf16", "fp16"] in GROUPS.values()
    assert ["fp8-e4m3", "fp8-e4m3-truncated", "fp8-s4-truncated"] in GROUPS.values()


def test_cards_name_their_counterpart_and_what_they_leave_out():
    for name, card in ENGINE_CARDS.items():
        assert len(card.reference_system) > 10, name
        assert card.not_modeled, name


@pytest.mark.parametrize("name", ENGINE_PAIRS)
def test_pairs_are_named_after_their_engines(name):
    train, infer = name.split("/")
    assert find_pair(name).train is ENGINES[train]
    assert find_pair(name).infer is ENGINES[infer]


def test_exact_pairs_have_the_same_engine_on_both_sides():
    for name in EXACT_PAIRS:
        pair = ENGINE_PAIRS[name]
        assert pair.train is pair.infer


def test_names_resolve_or_say_what_is_allowed():
    for name in ENGINES:
        assert find_engine(name) is ENGINES[name]
    assert find_engine(ENGINES["f32"]) is ENGINES["f32"]
    with pytest.raises(ValueError, match=r"unknown engine 'fp8-e4m3-trunc'; did you mean.*allowed: f32,"):
        find_engine("fp8-e4m3-trunc")
    with pytest.raises(ValueError, match=r"'f32/bf17', 'bf17'; did you mean 'bf16'.*allowed: f32, "):
        find_pair("f32/bf17")
    assert find_pair("mxfp8/nvfp4").infer is ENGINES["nvfp4"]  # any two engines make a pair
