"""The core lowers for CPU, CUDA and TPU, whatever machine runs this test."""

import math
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from simlab.engines import ACCUMULATORS, ENGINES, linear, matmul, softmax
from simlab.formats import quantize
from simlab.metrics import METRICS
from simlab.models.parameters import init_params
from simlab.models.transformer import logits
from simlab.objectives import TokenBatch, token_coefficients
from simlab.training.critic import Critic
from simlab.training.curvature import hessian_ends
from simlab.training.recipe import initial_state
from simlab.training.step import rollout, train_step
from tests.training.recipes import DENSE, MOE, TASK, small_recipe

PLATFORMS = ("cpu", "cuda", "tpu")
X = jax.ShapeDtypeStruct((4, 64), jnp.float32)
W = jax.ShapeDtypeStruct((64, 8), jnp.float32)
TOKENS = jax.ShapeDtypeStruct((4, 6), jnp.float32)
REWARDS = jax.ShapeDtypeStruct((4,), jnp.float32)


def _lowers(function, *shapes):
    exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)(*shapes)
    assert exported.platforms == PLATFORMS


@pytest.mark.parametrize(("fmt", "scaling"), [("bf16", None), ("e4m3fn", "fp8-per-token"), ("e2m1", "nvfp4")])
def test_quantize(fmt, scaling):
    _lowers(lambda x: quantize(x, fmt, scaling=scaling), X)


def test_stochastic_rounding():
    _lowers(lambda x: quantize(x, "bf16", rounding="stochastic", key=jax.random.key(0)), X)


@pytest.mark.parametrize("engine", ["bf16", "vllm-bf16", "fp8-e4m3-exact"])
def test_engines(engine):
    _lowers(lambda x, w: softmax(linear(x, w, ENGINES[engine]), ENGINES[engine]), X, W)


@pytest.mark.parametrize("accumulator", ["float32", "exact"])
def test_matmul(accumulator):
    _lowers(lambda a, b: matmul(a, b, accumulator=accumulator), X, W)


def _batch(logp, logp_train, logp_infer, rewards):
    return TokenBatch(logp, logp_train, logp_infer, rewards, jnp.ones(logp.shape, bool), 4)


@pytest.mark.parametrize("objective", ["dapo+tis", "dfpo_posorth", "gspo+acrl"])
def test_objectives(objective):
    _lowers(lambda *arrays: token_coefficients(objective, _batch(*arrays)), TOKENS, TOKENS, TOKENS, REWARDS)


def test_metrics():
    def all_metrics(*arrays):
        return [metric(_batch(*arrays)) for metric in METRICS.values()]

    _lowers(all_metrics, TOKENS, TOKENS, TOKENS, REWARDS)


def _cuda(function, *arguments) -> str:
    """The program for a CUDA device as text, before any compiler of that platform has seen it."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def _step(function, recipe) -> str:
    def first():
        key = jax.random.key(0)
        return initial_state(recipe, init_params(key, recipe.model), key)

    return _cuda(lambda state: function(recipe, state), jax.eval_shape(first))


def _products(program: str) -> list[str]:
    products = [line for line in program.splitlines() if "stablehlo.dot" in line]
    assert products
    assert "stablehlo.convolution" not in program
    return products


def _narrow(program: str) -> list[str]:
    # Without HIGHEST a GPU multiplies float32 in TF32, with ten bits, and says nothing.
    full = re.compile(r"precision = \[HIGHEST, HIGHEST\]")
    return [line for line in _products(program) if not full.search(line)]


@pytest.mark.parametrize(
    "recipe",
    [
        small_recipe("f32/fp8-e4m3", model=MOE, entropy_coeff=0.1, kl_loss_coef=0.1, staleness=1),
        small_recipe("f32/f32", "ppo", critic=Critic()),
    ],
    ids=["experts, KL and stale rollouts", "a critic"],
)
def test_no_product_of_a_step_is_made_in_tf32(recipe):
    assert not _narrow(_step(train_step, recipe))


@pytest.mark.parametrize("accumulator", [n for n, a in ACCUMULATORS.items() if hasattr(a, "dot")])
def test_no_accumulator_multiplies_in_tf32(accumulator):
    program = _cuda(lambda a, b: matmul(a, b, accumulator=accumulator), X, W)
    assert "stablehlo.dot" not in program or not _narrow(program)


def test_no_probe_multiplies_in_tf32():
    program = _cuda(lambda x: hessian_ends(lambda x: jnp.sum(jnp.sin(x) ** 2), x, jax.random.key(0), 2), X)
    assert not _narrow(program)


def test_rollout_has_one_loop_at_any_length():
    short, long = (_step(rollout, small_recipe(task=replace(TASK, difficulty=n))) for n in (4, 9))
    assert TASK.response_length != replace(TASK, difficulty=9).response_length
    # Decoding is in the loop: a longer response changes its bounds and adds no operation.
    count = {name: [program.count(name) for program in (short, long)] for name in ("while", "dot_general")}
    assert count["while"][0] == count["while"][1] == 1, count
    assert count["dot_general"][0] == count["dot_general"][1], count


STEPS = "abs|add|and|compare|divide|maximum|minimum|multiply|or|reduce-window|select|subtract"


def _count_steps(engine: str) -> int:
    """Count the numbers that one forward pass compiled for this CPU makes, products of matrices aside."""
    model = replace(DENSE, num_hidden_layers=2)
    params = jax.eval_shape(lambda: init_params(jax.random.key(0), model))
    tokens = jax.ShapeDtypeStruct((64, 8), jnp.int32)
    program = jax.jit(lambda params, tokens: logits(params, model, tokens, engine))
    text = program.lower(params, tokens).compile().as_text()
    shapes = re.findall(rf" = \w+\[([\d,]*)\]\S* (?:{STEPS})\(", text)
    return sum(math.prod(int(size) for size in shape.split(",") if size) for shape in shapes)


def test_no_rounding_of_a_two_bit_engine_is_made_twice():
    # 12.5 (jaxlib 0.10.2); 15.4 when amax and the rounding each computed what they read.
    assert _count_steps("fp8-s2-truncated-all") < 13.5 * _count_steps("f32")
