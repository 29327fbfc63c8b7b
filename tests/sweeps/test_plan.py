import pytest

from simlab.sweeps.grids import as_grid, grid
from simlab.sweeps.local import expected_minutes
from simlab.sweeps.plan import expand, make_plan
from simlab.sweeps.program import chunk_length
from tests.sweeps.small import BASE


def plan_of(over, width=4):
    runs = expand(BASE, as_grid(over), width)
    return make_plan(runs, [run.key for run in runs], width)


def test_objectives_numbers_and_seeds_share_a_program_and_shapes_do_not():
    plan = plan_of(
        {
            "objective": ["grpo", "gspo", {"name": "grpo+tis", "correction_clip": 3}],
            "optimizer.learning_rate": [1e-3, 1e-4],
            "sampler.temperature": [1, 0.7],
            "engines.infer.residual": ["e5m2", "bf16"],
            "seed": [0, 1],
        }
    )
    assert (len(plan.groups), plan.missing) == (1, 48)
    assert (
        plan_of({"prompts": [2, 4]})
        .describe()
        .startswith("2 runs; 2 programs, 2 slices of width 4, 4 run-steps")
    )
    assert len(plan_of({"engines": ["f32/f32", "f32/bf16"], "seed": [0, 1, 2]}).groups) == 2
    assert len(plan_of({"schedule": ["constant", "cosine"]}).groups) == 2


def test_a_run_that_is_asked_for_twice_is_one_run():
    plan = plan_of({"optimizer.learning_rate": [1, 1.0]})
    assert len(plan.runs) == 1


def test_what_is_there_is_not_planned():
    runs = expand(BASE, grid({"seed": range(6)}), 4)
    plan = make_plan(runs, [run.key for run in runs[4:]], 4)
    assert (
        plan.describe()
        == "6 runs (4 are there already); 1 programs, 1 slices of width 4, 4 run-steps to compute"
    )


def test_chunks_cover_the_steps_with_little_to_throw_away():
    for steps in range(1, 400):
        chunk = chunk_length(steps)
        calls = -(-steps // chunk)
        assert 1 <= chunk <= 10
        assert 0 <= calls * chunk - steps < calls


def test_the_expected_time_counts_slices_steps_and_programs():
    plan = plan_of({"seed": range(8), "engines": ["f32/f32", "f32/bf16"]})
    measured = [{"step": 3.0, "compile": 30.0, "cost": plan.groups[0].cost}]
    # 2 programs x 2 slices x 2 steps x 3 s, and one more program to compile.
    assert expected_minutes(plan, measured, 0) == pytest.approx((24 + 30) / 60)
    assert expected_minutes(plan, measured, 2) < expected_minutes(plan, measured, 0)


def test_errors_name_the_point():
    with pytest.raises(ValueError, match=r"prompts must be at least 1 .*\(at \{'prompts': 0\}\)"):
        plan_of({"prompts": [2, 0]})
