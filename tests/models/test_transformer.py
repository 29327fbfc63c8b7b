"""The transformer: decoding against scoring, an independent forward pass in float64, and its gradient."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from simlab.engines import ENGINES, Engine, Linear, Site, store
from simlab.models.config import MODELS, TransformerConfig
from simlab.models.kv_cache import empty_cache, repeat_caches
from simlab.models.parameters import init_params
from simlab.models.rotary import rotate, rotation_table
from simlab.models.transformer import extend, logits, prepare, read_logits, response_logps
from tests.compiling import compile_quickly
from tests.tolerances import assert_exact, assert_within_interval, normal_interval

DENSE = TransformerConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
MOE = replace(DENSE, num_experts=4)
BATCH, PROMPT, LENGTH = 3, 4, 8

score = jax.jit(logits, static_argnums=1)


@pytest.fixture(scope="module", params=[DENSE, MOE], ids=["dense", "moe"])
def config(request):
    return request.param


@pytest.fixture(scope="module")
def params(config):
    return init_params(jax.random.key(0), config)


@pytest.fixture(scope="module")
def tokens(config):
    return jax.random.randint(jax.random.key(1), (BATCH, LENGTH), 0, config.vocab_size)


def decode(params, config, tokens, engine):
    """Logits of all positions, read as a rollout does: token by token, from a growing cache."""
    weights = prepare(params, config, engine)

    def step(caches, inputs):
        token, position = inputs
        hidden, caches, *_ = extend(weights, config, engine, caches, token[:, None], position)
        return caches, hidden

    caches = empty_cache(config, BATCH, LENGTH)
    _, hidden = jax.lax.scan(step, caches, (tokens.T, jnp.arange(LENGTH)))
    return read_logits(weights, engine, hidden[:, :, 0].transpose(1, 0, 2))


decoded = jax.jit(decode, static_argnums=1)

# Exact or fixed-order sums, stored in 16 or 8 bits. Compiling them is dear; `engines/test_attention.py` has a
# quick test of attention alone.
EXACT = [(model, name) for name in ("bf16-exact", "bf16-ordered", "fp8-e4m3-exact") for model in (DENSE, MOE)]
# Why the others promise nothing, even where their bits happen to agree:
INEXACT = {
    "f32": "the device's own product adds in an order that depends on the shape",
    "f32-flash": "attention has the same bits, the products around it are those of f32",
    "f32-exact": "products are exact, but the float32 multiply-adds of norms and rotations may be fused in "
    "one program and not in the other, with no rounding behind them to absorb the difference",
}


@pytest.mark.slow
@pytest.mark.parametrize(("model", "name"), EXACT)
def test_decoding_equals_scoring_bit_for_bit(model, name):
    compile_quickly(False)
    params, engine = init_params(jax.random.key(0), model), ENGINES[name]
    tokens = jax.random.randint(jax.random.key(1), (BATCH, LENGTH), 0, model.vocab_size)
    assert_exact(decoded(params, model, tokens, engine), score(params, model, tokens, engine))


@pytest.mark.parametrize(
    "name",
    ["f32", *(pytest.param(name, marks=pytest.mark.slow) for name in ("f32-flash", "f32-exact"))],
)
def test_decoding_is_close_to_scoring_elsewhere(params, config, tokens, name):
    # Not a tolerance class: a bound on mistakes, far above rounding and far below a wrong position or mask.
    assert name in INEXACT
    engine = ENGINES[name]
    apart = np.asarray(decoded(params, config, tokens, engine) - score(params, config, tokens, engine))
    assert np.abs(apart).max() < 1e-4


def test_no_token_sees_the_future(params, config, tokens):
    changed = tokens.at[:, -1].set((tokens[:, -1] + 1) % config.vocab_size)
    before, after = (score(params, config, row, Engine()) for row in (tokens, changed))
    assert_exact(before[:, :-1], after[:, :-1])
    assert (np.asarray(before[:, -1]) != np.asarray(after[:, -1])).any()


def test_float32_forward_agrees_with_an_independent_one(params, config, tokens):
    # Float32 against float64: about 100 sums of up to 64 terms of order 1 in a row, 2^-24 each.
    expected = reference_logits(jax.tree.map(lambda x: np.asarray(x, np.float64), params), config, tokens)
    np.testing.assert_allclose(score(params, config, tokens, Engine()), expected, atol=100 * 64 * 2.0**-24)


def reference_logits(params, config, tokens):
    """Qwen3 from its definition, one sequence and one token at a time, in float64."""

    def norm(x, weight):
        return x / np.sqrt((x * x).mean() + config.rms_norm_eps) * weight

    def turned(x, position):
        half = config.head_dim // 2
        angle = position * config.rope_theta ** (-np.arange(half) / half)
        a, b = x[:half], x[half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])

    def swiglu(x, gate_up, down):
        gate, up = np.split(x @ gate_up, 2)
        return (gate / (1 + np.exp(-gate)) * up) @ down

    def softmax(z):
        weights = np.exp(z - z.max())
        return weights / weights.sum()

    def feed_forward(layer, x):
        if not config.num_experts:
            return swiglu(x, layer["gate_up"], layer["down"])
        probs = softmax(x @ layer["router"])
        chosen = np.argsort(-probs, kind="stable")[: config.num_experts_per_tok]
        total = probs[chosen].sum()
        return sum(probs[e] / total * swiglu(x, layer["gate_up"][e], layer["down"][e]) for e in chosen)

    def one_sequence(row):
        xs = [params["embedding"][token] for token in row]
        for layer in params["layers"]:
            heads = [
                (norm(x, layer["attention_norm"]) @ layer["qkv"]).reshape(-1, config.head_dim) for x in xs
            ]
            q = [
                [turned(norm(h, layer["q_norm"]), t) for h in row[: config.heads[0]]]
                for t, row in enumerate(heads)
            ]
            k = [turned(norm(row[config.heads[0]], layer["k_norm"]), t) for t, row in enumerate(heads)]
            v = [row[config.heads[0] + 1] for row in heads]
            for t, x in enumerate(xs):
                mixed = []
                for head in q[t]:
                    weights = softmax(
                        np.asarray([head @ k[s] for s in range(t + 1)]) / np.sqrt(config.head_dim)
                    )
                    mixed.append(sum(w * v[s] for s, w in enumerate(weights)))
                xs[t] = x + np.concatenate(mixed) @ layer["o"]
            xs = [x + feed_forward(layer, norm(x, layer["mlp_norm"])) for x in xs]
        return np.stack([norm(x, params["norm"]) @ params["embedding"].T for x in xs])

    return np.stack([one_sequence(row) for row in np.asarray(tokens)])


def test_gradient_is_straight_through(params, config, tokens):
    """Rounding is invisible to the gradient: at the finest format it is that of float32."""
    prompts, responses = tokens[:, :PROMPT], tokens[:, PROMPT:]

    @jax.jit
    def gradient(engine):
        return jax.grad(lambda p: response_logps(p, config, engine, prompts, responses)[0].sum())(params)

    plain = gradient(Engine())
    rounded = gradient(replace(Engine(), projection=ENGINES["bf16"].projection, residual=Site.of("bf16")))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(rounded), strict=True):
        assert np.isfinite(b).all()
        # BF16 has 8 bits; a dropped gradient would differ by all of its size.
        assert np.linalg.norm(a - b) < 0.2 * np.linalg.norm(a) + 1e-6


def test_response_logps_reads_the_right_positions(params, config, tokens):
    prompts, responses = tokens[:, :PROMPT], tokens[:, PROMPT:]
    scores = jax.jit(response_logps, static_argnums=1)(params, config, Engine(), prompts, responses)
    full = jax.nn.log_softmax(score(params, config, tokens, Engine())[:, PROMPT - 1 : -1])
    # Two softmax implementations: a few units in the last place of numbers up to 16.
    np.testing.assert_allclose(
        scores.logp,
        np.take_along_axis(np.asarray(full), np.asarray(responses)[..., None], -1)[..., 0],
        atol=1e-5,
    )
    np.testing.assert_allclose(scores.entropy, -(np.exp(full) * full).sum(-1), atol=1e-5)


def test_shared_prompt_is_read_once_with_equal_results(params, config, tokens):
    prompts, responses = jnp.repeat(tokens[:1, :PROMPT], len(tokens), axis=0), tokens[:, PROMPT:]

    def scored(params, group_size):
        found = response_logps(params, config, Engine(), prompts, responses, group_size=group_size)
        return found.logp.sum(), found

    by_group, alone = (
        jax.jit(jax.grad(partial(scored, group_size=n), has_aux=True))(params) for n in (len(tokens), 1)
    )
    # Float32 sums in another order; a gradient sums over all tokens.
    for together, apart in zip(jax.tree.leaves(by_group), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(together, apart, rtol=1e-3, atol=1e-4)
    assert by_group[1].logp.shape == responses.shape


def test_caches_repeat_sequences_in_a_row(config):
    caches = jax.tree.map(lambda x: x + jnp.arange(2.0)[:, None, None], empty_cache(config, 2, 3))
    for leaf in jax.tree.leaves(repeat_caches(caches, 2, 2)):
        assert_exact(leaf[:, 0, 0], jnp.asarray([0.0, 0.0, 1.0, 1.0]))


def test_rotation_by_zero_is_nothing_and_rotations_add():
    cos, sin = (jnp.asarray(table) for table in rotation_table(3, 32, 10000.0))
    x = jax.random.normal(jax.random.key(0), (1, 3, 1, 32))
    turned = rotate(x, cos, sin, Engine())
    assert_exact(turned[:, 0], x[:, 0])
    again = rotate(rotate(x[:, 2:], cos[1:2], sin[1:2], Engine()), cos[1:2], sin[1:2], Engine())
    np.testing.assert_allclose(turned[:, 2:], again, atol=1e-6)


def test_biases_and_an_untied_head_are_read():
    config = replace(DENSE, attention_bias=True, tie_word_embeddings=False, qk_norm=False)
    params = init_params(jax.random.key(0), config)
    tokens = jnp.arange(4)[None]
    before = score(params, config, tokens, Engine())
    params["layers"][0]["qkv_bias"] += 0.5
    assert (score(params, config, tokens, Engine()) != before).any()
    assert (score({**params, "lm_head": params["lm_head"] * 0}, config, tokens, Engine()) == 0).all()


def test_engine_sites_are_swept_in_one_program(params, config, tokens):
    """The residual stream's format as a vmapped axis: one program, the numbers of separate ones."""
    engines = [replace(Engine(), residual=Site.of(name)) for name in ("fp32", "bf16", "e4m3fn")]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *engines)
    swept = jax.jit(jax.vmap(lambda engine: logits(params, config, tokens, engine)))(stacked)
    spread = [np.abs(np.asarray(swept[i] - swept[0])).max() for i in (1, 2)]
    assert 0 < spread[0] < spread[1]


@pytest.mark.parametrize("scaled", ["projection", "row_parallel"])
def test_o_and_down_have_the_weights_of_their_own_site(params, config, tokens, scaled):
    site = ENGINES["fp8-e4m3"].projection.weights
    rounds = {"projection": ("qkv", "gate_up"), "row_parallel": ("o", "down")}[scaled]

    def rounded(layer):
        # Each expert has scales of its own.
        stored = {
            name: jax.vmap(lambda w: store(w, site)) if layer[name].ndim == 3 else partial(store, site=site)
            for name in rounds
        }
        return layer | {name: function(layer[name]) for name, function in stored.items()}

    expected = score({**params, "layers": tuple(map(rounded, params["layers"]))}, config, tokens, Engine())
    linears = {"projection": Linear(), "row_parallel": Linear()} | {scaled: Linear(weights=site)}
    found = score(params, config, tokens, Engine(**linears))
    # Scales multiply sums of at most 32 terms in one, and terms in the other.
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            {"num_key_value_heads": 3},
            "num_attention_heads must be a multiple of num_key_value_heads, got 2 and 3",
        ),
        ({"head_dim": 31}, "head_dim must be even, .*, got 31"),
        (
            {"num_experts": 2, "num_experts_per_tok": 3},
            "num_experts_per_tok must be 1 to num_experts = 2, got 3",
        ),
    ],
)
def test_impossible_shapes_are_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        replace(DENSE, **bad)


def test_sizes_of_the_presets():
    shapes = {
        name: jax.eval_shape(lambda c=config: init_params(jax.random.key(0), c))
        for name, config in MODELS.items()
    }
    counts = {name: sum(leaf.size for leaf in jax.tree.leaves(shape)) for name, shape in shapes.items()}
    assert 5e4 < counts["tiny-dense"] < counts["tiny-moe"] < counts["small-dense"] < counts["small-moe"] < 3e6
    assert MODELS["small-moe"].num_hidden_layers >= 4
    assert MODELS["small-moe"].num_experts == 16
    assert all(config.head_dim == 32 and config.moe_intermediate_size % 32 == 0 for config in MODELS.values())


@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "moe"])
def test_response_logps_scan_over_layers_as_they_unroll(model):
    config = replace(model, num_hidden_layers=4)
    params = init_params(jax.random.key(2), config)
    prompts = jnp.repeat(jax.random.randint(jax.random.key(3), (2, PROMPT), 0, config.vocab_size), 2, axis=0)
    responses = jax.random.randint(jax.random.key(4), (4, LENGTH), 0, config.vocab_size)

    @partial(jax.jit, static_argnames="scan_layers")
    def scores(params, scan_layers):
        found = response_logps(
            params, config, Engine(), prompts, responses, group_size=2, scan_layers=scan_layers
        )
        return found.logp, found.routed_experts

    programs = [scores.lower(params, scan_layers=scan) for scan in (False, True)]
    (unrolled, chosen), (scanned, also) = (program.compile()(params) for program in programs)
    # Sums of at most 32 terms, in an order that the compiler chooses for each.
    np.testing.assert_allclose(scanned, unrolled, rtol=1e-5)
    if chosen is not None:
        np.testing.assert_array_equal(also, chosen)
    products = [program.as_text().count("stablehlo.dot_general") for program in programs]
    assert products[1] < products[0]


def test_stochastic_weights_are_unbiased_in_every_expert():
    weights = Site.of("e4m3fn", "stochastic")
    engine = Engine(projection=Linear(weights=weights))
    params = init_params(jax.random.key(0), MOE)
    layer = params["layers"][0]
    same = jnp.broadcast_to(layer["gate_up"][:1], layer["gate_up"].shape)
    params = {**params, "layers": ({**layer, "gate_up": same},)}

    @jax.jit
    def draw(key):
        held = prepare(params, MOE, engine, key)["layers"][0]["gate_up"]
        return held.elements * held.scale

    drawn = np.asarray(draw(jax.random.key(1)), np.float64)
    assert (drawn[0] != drawn[1]).any()
    # Of E4M3 numbers between two neighbors a gap apart, the variance is at most a quarter of the gap squared.
    exact = np.asarray(same, np.float64)
    gap = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-6))) - 3)
    standard = ((drawn - exact) / (gap / 2)).ravel()
    assert_within_interval(standard.mean(), *normal_interval(standard.size, 0.0, 1.0, 1e-9), alpha=1e-9)
    assert np.abs(standard).max() <= 2
