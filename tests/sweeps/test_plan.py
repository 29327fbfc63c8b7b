from pathlib import Path

import jax
import pytest

from simlab.models import parameters
from simlab.sweeps import compile_cache, forecast, plan, start, timings
from simlab.sweeps.config import recipe_of, run_config
from simlab.sweeps.forecast import expected_minutes
from simlab.sweeps.grids import as_grid, grid, listed
from simlab.sweeps.machine_speed import Calibration
from simlab.sweeps.plan import expand, make_plan
from simlab.sweeps.program import chunk_length
from simlab.sweeps.sweep import prepare
from tests.sweeps.small import BASE


def plan_of(over, runs_per_batch=4):
    runs = expand(BASE, as_grid(over), runs_per_batch)
    return make_plan(runs, [run.key for run in runs], runs_per_batch)


def test_objectives_and_numbers_share_a_program():
    plan = plan_of(
        {
            "objective": ["grpo", "gspo", {"name": "grpo+tis", "correction_clip": 3}],
            "optimizer.learning_rate": [1e-3, 1e-4],
            "sampling.temperature": [1, 0.7],
            "engines.infer.residual": ["e5m2", "bf16"],
            "seed": [0, 1],
        }
    )
    assert (len(plan.groups), plan.missing) == (1, 48)
    assert (
        plan_of({"prompts_per_step": [2, 4]})
        .describe()
        .startswith("2 runs; 2 compiled functions, 2 run batches of 4, 4 run-steps")
    )
    assert len(plan_of({"engines": ["f32/f32", "f32/bf16"], "seed": [0, 1, 2]}).groups) == 2
    assert len(plan_of({"schedule": ["constant", "cosine"]}).groups) == 2


def test_expand_drops_duplicate_runs():
    plan = plan_of({"optimizer.learning_rate": [1, 1.0]})
    assert len(plan.runs) == 1


def test_two_arms_that_are_the_same_run_are_an_error():
    same = listed({"one": {"optimizer.learning_rate": 1}, "other": {"optimizer.learning_rate": 1.0}})
    with pytest.raises(ValueError, match="arms 'one' and 'other' must differ; they are the same run"):
        expand(BASE, same, 4)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("jax_enable_x64", True), ("jax_default_prng_impl", "rbg"), ("jax_threefry_partitionable", False)],
)
def test_settings_of_jax_that_change_bits_are_refused(setting, value):
    before = getattr(jax.config, setting)
    jax.config.update(setting, value)
    try:
        with pytest.raises(ValueError, match=rf"{setting} must be .* when runs are computed, got"):
            expand(BASE, grid({"seed": [0]}), 4)
    finally:
        jax.config.update(setting, before)


def test_arms_are_named_by_all_that_varies_beside_them():
    arms = listed({"plain": {"objective": "grpo"}, "TIS": {"objective": "grpo+tis"}})
    rates = grid({"optimizer.learning_rate": [1e-3, 1e-4], "seed": [0, 1]})
    names = [run.arm for run in expand(BASE, arms * rates, 4)]
    assert names == [
        f"{arm}, learning_rate={rate}"
        for arm in ("plain", "TIS")
        for rate in (0.001, 0.0001)
        for _ in range(2)
    ]


def test_make_plan_skips_finished_runs():
    runs = expand(BASE, grid({"seed": range(6)}), 4)
    plan = make_plan(runs, [run.key for run in runs[4:]], 4)
    assert (
        plan.describe()
        == "6 runs (4 are there already); 1 compiled function, 1 run batch of 4, 4 run-steps to compute"
    )


def test_chunks_cover_the_steps():
    for steps in range(1, 400):
        chunk = chunk_length(steps)
        calls = -(-steps // chunk)
        assert 1 <= chunk <= 10
        assert 0 <= calls * chunk - steps < calls


@pytest.fixture
def quiet(monkeypatch):
    """Two cores of a machine twice as slow as that of reference, with nothing else on them."""
    monkeypatch.setattr(forecast, "_cores", lambda: 2)
    monkeypatch.setattr(forecast, "calibrate", lambda: Calibration(slowness=2.0, contention=1.0))


def test_forecast_counts_batches_steps_and_functions(monkeypatch, quiet):
    plan = plan_of({"seed": range(8), "engines": ["f32/f32", "f32/bf16"]})
    monkeypatch.setattr(forecast, "expect_groups", lambda *_: [forecast.Expectation(30.0, 3.0)] * 2)
    # 2 groups x (30 CPU seconds to compile on two cores and 2 run batches x 2 steps x 3 s).
    assert expected_minutes(plan, 0) == pytest.approx((24 + 30) / 60)
    assert expected_minutes(plan, 2) < expected_minutes(plan, 0)


def test_forecast_counts_what_checkpoints_leave(monkeypatch, quiet):
    plan = plan_of({"seed": range(8), "steps": [40]})
    monkeypatch.setattr(forecast, "expect_groups", lambda *_: [forecast.Expectation(0.0, 3.0)])
    # The first run batch waits for its last run; chunks have ten steps.
    completed = dict(zip([run.key for run in plan.runs], [20, 25, 30, 30], strict=False))
    assert expected_minutes(plan, 0, completed) == pytest.approx((20 + 40) * 3 / 60)


def test_forecast_without_timings_is_calibrated(monkeypatch, tmp_path, quiet):
    monkeypatch.setattr(timings, "compile_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(forecast, "count_operations", lambda *_: {"sample": 100, "learn": 400})
    (group,) = plan_of({"seed": range(8)}).groups
    (expected,) = forecast.expect_groups([group], 4)
    assert expected.compile == pytest.approx(2 * 500 * forecast.SECONDS_PER_OPERATION)
    tokens, minibatches = forecast.recipe_of(group.runs[0].config).task.response_length, 1
    executed = (100 * tokens + 400 * minibatches) * forecast.SECONDS_PER_EXECUTION
    assert expected.step == pytest.approx(2 * (4 * group.cost * forecast.SECONDS_PER_COST + executed))


def test_forecast_of_a_function_that_another_sweep_compiled(monkeypatch, tmp_path, quiet):
    monkeypatch.setattr(timings, "compile_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compile_cache, "compile_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(forecast, "count_operations", lambda *_: {"sample": 100, "learn": 400})
    (group,) = plan_of({"seed": range(8)}).groups
    with compile_cache.compiling_alone("learn"):
        pass
    (expected,) = forecast.expect_groups([group], 4)
    counted = 100 + forecast.LOAD_FRACTION * 400
    assert expected.compile == pytest.approx(2 * counted * forecast.SECONDS_PER_OPERATION)
    (timing,) = timings.read_timings("*")
    assert timing["operations"] == 100, "the rate of compilation is that of what this sweep compiles"


def test_cost_counts_a_critic_and_the_length_of_responses():
    plain, critic = (
        plan_of({"seed": [0]} | changes).groups[0].cost
        for changes in ({}, {"objective": ["ppo"], "critic": [{}]})
    )
    assert critic == 2 * plain
    short, long = (plan_of({"seed": [0], "task.difficulty": [size]}).groups[0] for size in (2, 8))
    recipes = [recipe_of(group.runs[0].config).task for group in (short, long)]
    tokens = [task.prompt_length + task.response_length for task in recipes]
    assert long.cost / short.cost > tokens[1] / tokens[0] > 1, "attention adds to the cost of each token"


def test_forecast_knows_a_program_that_was_timed(monkeypatch, tmp_path, quiet):
    monkeypatch.setattr(timings, "compile_cache_folder", lambda: tmp_path)
    counts = iter([{"sample": 100, "learn": 400}, {"sample of another": 50, "learn": 400}])
    monkeypatch.setattr(forecast, "count_operations", lambda *_: next(counts))
    now = [0.0]
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: now[0])
    # Another process takes a third of the time of the first chunk.
    monkeypatch.setattr(forecast.time, "process_time", lambda: 2 / 3 * now[0])
    plan = plan_of({"seed": range(8)})
    (group,), key = plan.groups, plan.runs[0].key
    assert expected_minutes(plan, 0) > 0
    for compile_seconds in (51.0, 4.0):  # the second process finds the program
        stopwatch = forecast.Stopwatch(plan)
        for seconds in (compile_seconds + 6.0, 6.0, 6.0):
            now[0] += seconds
            stopwatch({"event": "chunk", "runs": [key]})
        stopwatch({"event": "batch", "runs": [key]})
    (known,) = forecast.expect_groups([group], 4)
    assert known == forecast.Expectation(pytest.approx(4.0), pytest.approx(3.0), is_cached=True)
    # Another signature: as many CPU seconds per operation, as many seconds of a step per weight and token.
    other = plan_of({"prompts_per_step": [4]}).groups[0]
    (timing,) = forecast.expect_groups([other], 4)
    assert timing.compile == pytest.approx((2 / 3 * 57.0 - 6.0) / 500 * 450)
    assert timing.step == pytest.approx(3.0 * other.cost / group.cost)
    # A step of much more or less work says nothing: small ones are mostly overhead.
    far = plan_of({"prompts_per_step": [64]}).groups[0]
    assert forecast._expect_step(far, 4) == pytest.approx(2 * 4 * far.cost * forecast.SECONDS_PER_COST)


def test_one_chunk_does_not_measure_a_step(monkeypatch, tmp_path, quiet):
    monkeypatch.setattr(timings, "compile_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(forecast, "count_operations", lambda *_: {"sample": 100, "learn": 400})
    now = [0.0]
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(forecast.time, "process_time", lambda: now[0])
    plan = plan_of({"seed": range(4)})
    (group,), key = plan.groups, plan.runs[0].key
    (before,) = forecast.expect_groups([group], 4)
    stopwatch = forecast.Stopwatch(plan)
    now[0] += 60.0
    stopwatch({"event": "chunk", "runs": [key]})
    (killed,) = forecast.expect_groups([group], 4)
    assert killed.is_cached, "a sweep that is killed after its first chunk keeps its timing"
    now[0] += 500.0
    stopwatch.leave_out()
    stopwatch({"event": "batch", "runs": [key]})
    (after,) = forecast.expect_groups([group], 4)
    # Compilation and the only chunk cannot be told apart, so the step stays what was expected of it.
    assert after.is_cached
    assert after.step == before.step
    assert not forecast._read_measured(4)
    (timing,) = timings.read_timings("*")
    assert timing["compile"] == pytest.approx(60.0 - before.step * group.steps)


def test_forecast_knows_a_timed_program_that_was_not_traced(monkeypatch, tmp_path, quiet):
    monkeypatch.setattr(timings, "compile_cache_folder", lambda: tmp_path)
    monkeypatch.setattr(forecast, "MOST_TRACED", 0)
    now = [0.0]
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(forecast.time, "process_time", lambda: now[0])
    plan = plan_of({"seed": range(4)})
    (group,), key = plan.groups, plan.runs[0].key
    stopwatch = forecast.Stopwatch(plan)
    for seconds in (60.0, 6.0, 6.0):
        now[0] += seconds
        stopwatch({"event": "chunk", "runs": [key]})
    stopwatch({"event": "batch", "runs": [key]})
    (known,) = forecast.expect_groups([group], 4)
    assert known.step == pytest.approx(6.0 / group.steps)


def test_errors_name_the_point():
    with pytest.raises(ValueError, match=r"prompts_per_step must be at least 1 .*'prompts_per_step': 0"):
        plan_of({"prompts_per_step": [2, 0]})
    with pytest.raises(ValueError, match=r"steps must be at least 1 .*, got 0\.$"):
        expand({**BASE, "steps": 0}, grid({"seed": [0]}), 4)


def test_sweep_reads_each_config_once(monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # where the default depends on the runs
    calls, read = [], plan.run_config
    monkeypatch.setattr(plan, "run_config", lambda *given: calls.append(given) or read(*given))
    planned, _ = prepare(BASE, as_grid({"seed": [0, 1, 2]}), tmp_path, None)
    assert (len(planned.runs), len(calls)) == (3, 3)


def test_members_of_a_policy_share_the_traced_shapes(monkeypatch):
    calls, init = [], parameters.init_params
    monkeypatch.setattr(parameters, "init_params", lambda *given: calls.append(given) or init(*given))
    parameters.shapes_of.cache_clear()
    config = run_config({"task": "add", "warm_start": "add-tiny-llama-0"})
    recipe = recipe_of(config)
    calls.clear()
    for seed in range(3):
        start.load_initial_params(config.warm_start, recipe.task, recipe.model, seed, Path("unused"))
    assert len(calls) <= 1
