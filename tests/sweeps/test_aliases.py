"""Aliases, defaults and short column names: they give the run that the full paths give."""

import numpy as np
import pandas as pd
import pytest

import simlab
from simlab.formats import FORMATS
from simlab.sweeps import SweepResult, recipe_of, run_config
from simlab.sweeps.column_names import short_names, with_aliases, with_short_names
from simlab.sweeps.config import columns
from simlab.sweeps.grids import as_grid, grid, listed
from simlab.sweeps.plan import expand, make_plan
from simlab.sweeps.tables import dead_since

RUN = {"task": "add", "model": "tiny-llama", "steps": 10}
SITE = "engines.infer.projection.activations"


def test_run_config_has_default_engines_and_objective():
    config = run_config(RUN)
    assert config.table["engines"] == {"name": "f32/f32"}
    assert config.table["objective"] == {"name": "grpo"}


@pytest.mark.parametrize(
    ("start", "model"), [("add-tiny-llama-0", "tiny-llama"), ("add-tiny-moe-0", "tiny-moe")]
)
def test_warm_start_carries_its_model(start, model):
    run = {"task": "add", "steps": 10, "warm_start": start}
    assert run_config(run) == run_config({**run, "model": model})


def test_warm_start_carries_a_changed_model():
    model = run_config({"task": "chain", "steps": 10, "warm_start": "chain-moe-5"}).table["model"]
    assert (model["name"], model["qk_norm"]) == ("tiny-moe", False)


@pytest.mark.parametrize(
    ("alias", "value", "path"),
    [
        ("learning_rate", 3e-4, "optimizer.learning_rate"),
        ("clip_low", 0.1, "objective.clip_low"),
        ("clip_high", 0.28, "objective.clip_high"),
    ],
)
@pytest.mark.parametrize("as_base", [True, False])
def test_alias_is_its_path(alias, value, path, as_base):
    short = run_config({**RUN, alias: value}) if as_base else run_config(RUN, {alias: value})
    assert short == run_config(RUN, {path: value})


def test_path_overrides_alias_of_base():
    config = run_config({**RUN, "learning_rate": 1e-3}, {"optimizer.learning_rate": 1e-4})
    assert config.table["optimizer"]["learning_rate"] == 1e-4


@pytest.mark.parametrize("bits", [0, 2, 7, 21])
def test_infer_mantissa_bits_narrows_float32(bits):
    projection = recipe_of(run_config(RUN, {"infer_mantissa_bits": bits})).engines.infer.projection
    for site in (projection.activations, projection.weights):
        assert int(site.format.mantissa_bits) == bits
        assert site.format.max_finite == np.float32((2 - 2.0**-bits) * 2.0**127)


def test_seven_infer_mantissa_bits_are_bf16():
    made = recipe_of(run_config(RUN, {"infer_mantissa_bits": 7})).engines.infer.projection.weights.format
    assert all(
        np.array_equal(getattr(made, name), getattr(FORMATS["bf16"], name), equal_nan=True)
        for name in ("mantissa_bits", "min_exponent", "max_finite", "min_finite")
    )


def test_infer_aliases_combine():
    changes = {"infer_format": "e4m3fn", "infer_mantissa_bits": 2, "infer_rounding": "toward_zero"}
    site = recipe_of(run_config(RUN, changes)).engines.infer.projection.activations
    assert (int(site.format.mantissa_bits), float(site.format.max_finite)) == (2, 448.0)
    assert float(site.rounding.carry_positive) == 0.0


def test_one_set_of_changes_names_a_field_once():
    with pytest.raises(ValueError, match=r"clip_high and objective\.clip_high must not both be given"):
        run_config(RUN, {"clip_high": 0.2, "objective.clip_high": 0.3})


def test_response_length_chooses_the_difficulty():
    assert recipe_of(run_config(RUN, {"response_length": 14})).task.response_length == 14


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"infer_mantissa_bits": 30}, "infer_mantissa_bits must be at least 0 and at most 21, got 30"),
        ({"infer_mantissa_bits": 2.5}, "infer_mantissa_bits must be an integer, got 2.5"),
        ({"response_length": 0}, r"response_length must be one of 12 to 18 for this task, got 0\."),
        ({"response_length": 500}, r"response_length must be one of 12 to 18 for this task, got 500\."),
        ({"learning_rate": -1}, "optimizer.learning_rate"),
        ({"temperature": 1}, "did you mean 'sampling.temperature'"),
        ({"mantissa_bits": 3}, f"did you mean '{SITE}.format.mantissa_bits'"),
        ({"learning_rte": 3}, "did you mean 'learning_rate'"),
        ({"learning_rate": 1e-4, "optimizer": {"learning_rate": 1e-3}}, "must not both be given"),
    ],
)
def test_bad_names_and_values_say_where_they_belong(changes, message):
    with pytest.raises(ValueError, match=message):
        run_config({**RUN, **changes})


PLAIN = {"task": "add", "warm_start": "add-tiny-llama-0"}
PLAIN_OVER = {
    "infer_mantissa_bits": [2, 3, 4],
    "clip_high": [0.2, 0.28],
    "learning_rate": [1e-4, 3e-4],
    "seed": range(2),
}


def test_plain_sweep_is_one_program():
    runs = expand({**PLAIN, "steps": 100}, grid(PLAIN_OVER), 4)
    plan = make_plan(runs, [run.key for run in runs], 4)
    assert (len(plan.runs), len(plan.groups)) == (24, 1)


@pytest.mark.slow
def test_plain_sweep_runs_as_written(tmp_path):
    result = simlab.sweep({**PLAIN, "steps": 1}, PLAIN_OVER, tmp_path, workers=0)
    frame = result.frame()
    assert len(frame) == 24
    assert {"objective", "grad_norm", "reward", "rms_log_rho", *PLAIN_OVER} <= set(frame)
    assert set(frame["objective"]) == {"grpo"}
    assert (frame["rms_log_rho"] > 0).all()
    by_bits = frame.groupby("infer_mantissa_bits")["rms_log_rho"].mean()
    assert by_bits.is_monotonic_decreasing


BASE = {"task": "add", "model": "tiny-llama", "steps": 2}


def sweep_table(base, over):
    """Return the arms of a grid and the short columns of its runs."""
    runs = expand({**BASE, **base}, as_grid(over), 4)
    records = [with_aliases(columns(run.config), run.config.aliases) for run in runs]
    return [run.arm for run in runs], with_short_names(pd.DataFrame(records))


@pytest.mark.parametrize(
    ("base", "alias", "values"),
    [
        ({"infer_format": "e4m3"}, "infer_mantissa_bits", [2, 3]),
        ({"engines": "f32/fp8-e4m3"}, "infer_mantissa_bits", [1, 2, 3]),
        ({"engines": "f32/bf16"}, "infer_mantissa_bits", [6, 7]),
        ({"engines": "f32/bf16"}, "infer_rounding", ["nearest_even", "toward_zero"]),
        ({}, "infer_format", ["fp32", "bf16", "e4m3"]),
        ({}, "response_length", [12, 14]),
        ({}, "infer_format", [FORMATS["bf16"], "e4m3"]),
    ],
)
def test_swept_alias_is_in_column_and_label(base, alias, values):
    arms, table = sweep_table(base, {alias: values})
    expected = ["bf16" if value is FORMATS["bf16"] else value for value in values]
    assert list(table[alias]) == expected
    assert arms == [value if isinstance(value, str) else f"{alias}={value}" for value in expected]
    assert SweepResult.varying(table) == [alias]
    assert len(set(table)) == len(list(table))


def test_alias_columns_combine():
    arms, table = sweep_table(
        {"infer_format": "e4m3"}, {"engines": ["f32/f32", "f32/bf16"], "infer_mantissa_bits": [2, 3.0]}
    )
    assert set(table["infer_format"]) == {"e4m3"}
    assert list(table["infer_mantissa_bits"]) == [2, 3, 2, 3]
    assert arms[:2] == ["f32/f32, infer_mantissa_bits=2", "f32/f32, infer_mantissa_bits=3"]


def test_alias_column_keeps_a_change_of_one_operand():
    path = f"{SITE}.format.mantissa_bits"
    arms, table = sweep_table({"infer_format": "e4m3"}, {path: [1, 2]})
    assert list(table["infer_format"]) == ["e4m3"] * 2
    assert arms == ["infer_mantissa_bits=1", "infer_mantissa_bits=2"]
    assert list(table["infer_mantissa_bits"]) == [1, 2]
    arms, table = sweep_table({"infer_mantissa_bits": 3}, {path: [1, 2]})
    assert list(table["infer_mantissa_bits"]) == [1, 2]
    assert arms == ["infer_mantissa_bits=1", "infer_mantissa_bits=2"]


def test_arm_name_stands_for_its_aliases():
    arms = {"narrow": {"infer_mantissa_bits": 2, "learning_rate": 1e-3}, "wide": {"infer_mantissa_bits": 9}}
    assert sweep_table({}, listed(arms))[0] == ["narrow", "wide"]


def test_short_names_are_unique():
    paths = ["seed", "warm_start.seed", "task.seed", "optimizer.learning_rate", "objective", "task"]
    names = short_names(paths)
    assert names["optimizer.learning_rate"] == "learning_rate"
    assert len(set(names.values())) == len(paths)
    assert names["warm_start.seed"] == "warm_start_seed"


def test_short_names_join_equal_operands():
    weights = SITE.replace("activations", "weights")
    runs = pd.DataFrame({f"{SITE}.format.mantissa_bits": [2, 3], f"{weights}.format.mantissa_bits": [2, 3]})
    short = with_short_names(runs)
    assert list(short) == ["infer_mantissa_bits"]
    assert short.attrs["paths"] == {"infer_mantissa_bits": f"{SITE}.format.mantissa_bits"}


@pytest.mark.parametrize(
    ("gradient", "reward", "expected"),
    [
        ([1] * 5 + [0] * 15, [1] * 20, (5, "zero gradient")),
        ([0] * 20, [1] * 20, (0, "zero gradient")),
        ([1] * 20, [1] * 8 + [0] * 12, (8, "zero reward")),
        ([1] * 20, [1] * 19 + [0], (-1, "")),
        ([1] * 20, [0] * 19 + [1], (-1, "")),
        ([0] * 3, [1] * 3, (-1, "")),
        ([1] * 100, [1] * 60 + [0] * 40, (60, "zero reward")),
        ([1] * 55 + [0] * 45, [1] * 100, (55, "zero gradient")),
        ([1] * 100, [1] * 75 + [0] * 25, (75, "zero reward")),
        ([1] * 100, [1] * 76 + [0] * 24, (-1, "")),
        ([1] * 21, [1] * 12 + [0] * 9, (-1, "")),
        ([1] * 5 + [0] * 5, [1] * 10, (5, "zero gradient")),
    ],
)
def test_dead_since_finds_the_zero_tail(gradient, reward, expected):
    assert dead_since({"grad_norm": np.array(gradient), "reward": np.array(reward)}) == expected
