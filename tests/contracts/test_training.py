"""What every task, model preset, schedule, engine pair and diagnostic has to keep inside a run.

Compilation takes nearly all the time, so most combinations are slow tests; in the fast ones a few of each
kind run, and others are traced, which fixes shapes, types and names. Each training engine and each exact pair
runs complete steps.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import count, cycle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from simlab.engines import ENGINE_PAIRS, EXACT_PAIRS, static_signature
from simlab.engines.engine import REPLAYS
from simlab.formats import stack
from simlab.metrics import METRICS
from simlab.metrics.catalog import BINNED_METRICS
from simlab.models.config import MODELS, TransformerConfig
from simlab.rollout.trajectory import Trajectory
from simlab.tasks import EOS_TOKEN_ID, PAD_TOKEN_ID, TASKS
from simlab.training.diagnostics import DIAGNOSTICS, DiagnosticContext
from simlab.training.loop import compile_steps, read_metrics, train
from simlab.training.measure import STEP_METRICS, STEP_NUMBERS
from simlab.training.optimizer import AdamW
from simlab.training.recipe import Recipe
from simlab.training.schedules import SCHEDULES
from simlab.training.step import rollout, train_step
from tests.compiling import compile_quickly
from tests.tolerances import assert_exact
from tests.training.recipes import assert_same_tree, differ, small_recipe, small_state

MODEL = TransformerConfig(
    hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1
)
MOE = replace(MODEL, num_experts=4)
STEPS = 4
# An average of nothing is NaN by the rule of the metrics: bins without tokens; rho that does not vary.
MAY_BE_NAN = {*BINNED_METRICS, "pcc"}


def recipe_of(pair="f32/f32", **changes) -> Recipe:
    sizes = {"model": MODEL, "prompts_per_step": 2, "group_size": 2, "minibatches": 1}
    return small_recipe(pair, optimizer=AdamW(learning_rate=1e-2), **(sizes | changes))


def check_metrics(metrics: dict) -> None:
    for name, values in metrics.items():
        assert values.dtype == np.float32, name
        assert name in MAY_BE_NAN or np.isfinite(values).all(), name


def check_run(recipe: Recipe) -> None:
    """Finite metrics, a state that moves, and the same bytes from the same seed."""
    first = small_state(recipe)
    state, metrics = train(recipe, small_state(recipe), STEPS, chunk=STEPS)
    check_metrics(metrics)
    assert int(state.step) == STEPS
    assert differ(state.params, first.params)
    again, same = train(recipe, small_state(recipe), STEPS, chunk=STEPS)
    assert_same_tree(again, state)
    assert_same_tree(same, metrics)
    _, other = train(recipe, small_state(recipe, seed=2), STEPS, chunk=STEPS)
    assert differ(other, metrics)


def check_traced(recipe: Recipe) -> dict:
    """A step that can be scanned: the state keeps its shapes and types. Returns the shapes of its metrics."""
    state = jax.eval_shape(lambda: small_state(recipe))
    after, metrics = jax.eval_shape(lambda state: train_step(recipe, state), state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for new, old in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
    assert all(metric.dtype == jnp.float32 for metric in metrics.values())
    return metrics


def check_rollout(recipe: Recipe, sampled: Trajectory) -> None:
    rows = recipe.prompts_per_step * recipe.group_size
    assert sampled.responses.shape == (rows, recipe.task.response_length)
    assert sampled.mask[:, 0].all()
    assert (np.asarray(sampled.responses)[~np.asarray(sampled.mask)] == PAD_TOKEN_ID).all()
    assert (np.asarray(sampled.responses == EOS_TOKEN_ID).sum(-1) <= 1).all()
    assert np.isfinite(sampled.logp_infer).all()
    assert (np.asarray(sampled.logp_infer) <= 0).all()
    rewards = np.asarray(sampled.rewards)
    assert ((rewards >= 0) & (rewards <= 1)).all()


def test_a_run_lives_and_repeats_itself():
    check_run(recipe_of())


def task_of(name: str):
    return TASKS[name](difficulty=2, train_size=16, held_out_size=8)


SIGNATURES: dict = defaultdict(list)
for _name, _pair in ENGINE_PAIRS.items():
    SIGNATURES[static_signature(_pair)].append(_name)


def _tasks_in_turn() -> Iterator[str]:
    """Every task; one that is a kind of another takes every second of its turns."""
    kinds = {
        name: [other for other, kind in TASKS.items() if issubclass(kind, found)]
        for name, found in TASKS.items()
        if found.__base__ not in TASKS.values()
    }
    for turn in count():
        yield from (names[turn % len(names)] for names in kinds.values())


def _is_exact(names: list[str]) -> bool:
    return bool(set(names) & set(EXACT_PAIRS))


def _combinations() -> list:
    """All exact pairs, the first pair of each other training engine; every task, schedule and preset in turn.

    The presets go to pairs that compile fast; the small ones are the tiny ones with more layers, and only
    traced below, as are the other pairs. The numbers of every engine are tested site by site, and stacked, in
    `test_engines.py`.
    """
    rest = iter(name for name in MODELS if not name.startswith("small"))
    tasks, schedules = _tasks_in_turn(), cycle(SCHEDULES)
    trainers, cases = {name.partition("/")[0] for name in EXACT_PAIRS}, []
    for names in SIGNATURES.values():
        trainer = names[0].partition("/")[0]
        cheap = len(names) == 1 and trainer in ("f32", "bf16")
        model = next(rest, None) if cheap else None
        if model or names[0] == "f32/fp8-e4m3" or _is_exact(names) or trainer not in trainers:
            task, schedule = next(tasks), next(schedules)
            label = "+".join(names) + f"-{task}-{schedule}" + (f"-{model}" if model else "")
            cases.append(pytest.param(names, task, schedule, model, id=label))
        trainers.add(trainer)
    return cases


COMBINATIONS = _combinations()


def test_combinations_cover_tasks_schedules_and_presets():
    _, tasks, schedules, models = zip(*(case.values for case in COMBINATIONS), strict=True)
    presets = {name for name in MODELS if not name.startswith("small")}
    assert (set(tasks), set(schedules), set(models)) == (set(TASKS), set(SCHEDULES), {None, *presets})


@pytest.mark.slow
@pytest.mark.parametrize(("names", "task", "schedule", "model"), COMBINATIONS)
def test_pairs_of_one_signature_live_side_by_side(names, task, schedule, model):
    """Finite metrics, moving states, the same bytes from the same seed, others from other engines.

    Exact pairs have no mismatch, with experts in the policy.
    """
    exact = _is_exact(names)
    recipe = recipe_of(
        task=task_of(task),
        schedule=SCHEDULES[schedule](),
        # With experts there is more that could differ.
        model=MODELS[model] if model else MOE if exact else MODEL,
        # An untrained policy earns nothing in most tasks: the entropy bonus moves it all the same.
        entropy_coeff=0.1,
    )
    recipe = replace(recipe, engines=stack([ENGINE_PAIRS[name] for name in names]))
    mapped = replace(jax.tree.map(lambda _: None, recipe), engines=0)

    # What promises equal bits has to keep that as it is compiled for everybody.
    compile_quickly(not exact)
    steps = compile_steps(STEPS, (mapped, 0))

    def run(seed: int) -> tuple:
        state = jax.tree.map(lambda x: jnp.stack([x] * len(names)), small_state(recipe, seed))
        after, made = steps(recipe, state)
        return jax.device_get(after.params), read_metrics(made, along=1)

    first = small_state(recipe).params
    ended, metrics = run(1)
    check_metrics(metrics)
    assert metrics["reward"].shape == (len(names), STEPS)
    rows = [jax.tree.map(lambda x, row=row: x[row], (ended, metrics)) for row in range(len(names))]
    for number, (params, measured) in enumerate(rows):
        assert differ(params, first)
        assert all(differ(measured, other) for _, other in rows[:number])
        if names[number] in EXACT_PAIRS:
            # Zero only if every difference of log-probabilities is.
            assert_exact(measured["rms_log_rho"], np.zeros(STEPS, np.float32))
            assert_exact(measured["max_rho"], np.ones(STEPS, np.float32))
    assert_same_tree(run(1), (ended, metrics))
    assert differ(run(2)[1], metrics)


TRACED = (
    "f32/fp8-e4m3-truncated-all",
    "bf16/vllm-bf16",
    "bf16/nvfp4",
    "h100-bf16/h100-fp8-deepgemm",
    EXACT_PAIRS[1],
)
"""Pairs of each kind of arithmetic that are traced in the fast tests."""
SCANNED = {name for case in COMBINATIONS for name in case.values[0]}
"""Pairs that the test above scans."""


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, marks=() if pair in TRACED else pytest.mark.slow)
        for pair in ENGINE_PAIRS
        if pair in TRACED or pair not in SCANNED
    ],
)
def test_pairs_make_a_step_that_can_be_scanned(pair):
    check_traced(recipe_of(pair))


@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_be_rolled_out(name):
    recipe = recipe_of(task=task_of(name))
    sample = jax.jit(rollout)
    sampled = sample(recipe, small_state(recipe))
    check_rollout(recipe, sampled)
    assert_same_tree(sample(recipe, small_state(recipe)), sampled)
    assert differ(sample(recipe, small_state(recipe, seed=2)).responses, sampled.responses)


@pytest.mark.parametrize("name", MODELS)
def test_presets_make_a_step_that_can_be_scanned(name):
    metrics = check_traced(recipe_of(model=MODELS[name]))
    experts = MODELS[name].num_experts
    assert ("router_flips" in metrics) == bool(experts)
    if experts:
        assert metrics["router_flips"].shape == (MODELS[name].num_hidden_layers,)


@cache
def trace_routed(replay: str) -> dict:
    """Return the shapes of a mixture's metrics: two tests read them."""
    recipe = recipe_of(model=MOE)
    return check_traced(replace(recipe, engines=replace(recipe.engines, replay=replay)))


@pytest.mark.parametrize("replay", REPLAYS)
def test_every_replay_makes_a_step_that_can_be_scanned(replay):
    assert trace_routed(replay)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_stay_in_unit_interval_and_repeat(name):
    schedule = SCHEDULES[name]()
    rng = np.random.default_rng(0)
    # Metrics that surge in the middle, for schedules that react.
    surge = np.where(np.arange(60) > 30, 5.0, 1.0) * rng.uniform(0.9, 1.1, 60)
    observed = {metric: jnp.asarray(surge, jnp.float32) for metric in (*STEP_METRICS, *STEP_NUMBERS)}

    def step(schedule_state, inputs):
        number, metrics = inputs
        factor = schedule(number, schedule_state)
        return schedule.observe(schedule_state, number, metrics), factor

    @jax.jit
    def factors():
        return lax.scan(step, schedule.init(), (jnp.arange(60), observed))[1]

    values = factors()
    assert values.dtype == jnp.float32
    assert ((np.asarray(values) >= 0) & (np.asarray(values) <= 1)).all()
    assert_same_tree(factors(), values)


def test_diagnostics_trace_every_name_when_model_is_moe():
    # tests/training/test_diagnostics.py compares what they return with its definition, on a dense model.
    recipe = recipe_of(model=replace(MODEL, num_experts=4))
    recipe = replace(recipe, engines=replace(recipe.engines, replay="R2"))
    state = jax.eval_shape(lambda: small_state(recipe))

    def measure(state):
        context = DiagnosticContext(recipe, state, state.params)
        return [diagnostic(context) for diagnostic in DIAGNOSTICS.values()]

    for measured in jax.eval_shape(measure, state):
        assert measured
        assert all(value.dtype == jnp.float32 for value in measured.values())


def test_every_number_of_a_step_is_described():
    described = set(STEP_METRICS) | set(STEP_NUMBERS)
    plain = check_traced(recipe_of(kl_loss_coef=0.1, entropy_coeff=0.1))
    routed = trace_routed("none")
    aged = check_traced(recipe_of(staleness=2, old_log_probs="rollout"))
    assert set(plain) | set(routed) | set(aged) <= described


def test_a_run_records_the_metrics_that_it_asks_for():
    plain, most = check_traced(recipe_of()), check_traced(recipe_of(metrics=tuple(METRICS)))
    assert set(most) == set(plain) | set(METRICS)
    assert {name for name in METRICS if most[name].ndim} == set(BINNED_METRICS)
    few = check_traced(recipe_of(metrics=("chi2_token",)))
    assert set(few) == set(plain) - set(STEP_METRICS) | {"rms_log_rho", "chi2_token"}


def test_metrics_that_are_left_out_are_not_compiled():
    def count(recipe: Recipe) -> int:
        state = jax.eval_shape(lambda: small_state(recipe))
        return str(jax.make_jaxpr(lambda state: train_step(recipe, state))(state)).count("\n")

    assert count(recipe_of(metrics=())) < count(recipe_of()) < count(recipe_of(metrics=tuple(METRICS)))
