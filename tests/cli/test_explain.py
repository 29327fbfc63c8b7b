import re

import jax
import jax.numpy as jnp
import pandas as pd
import pytest
from typer.testing import CliRunner

from simlab.cli import app
from simlab.cli.explain_command import _load_policy, _read_sweep, _without_policy
from simlab.models.config import MODELS
from simlab.models.parameters import init_params
from simlab.sweeps.config import run_config
from simlab.training.checkpoints import save_tree
from tests.sweeps.small import write_finished_sweep

runner = CliRunner()
RUN = {
    "engines": "f32/fp8-e4m3-truncated",
    "task": "add",
    "model": "tiny-llama",
    "warm_start": "add-tiny-llama-0",
    "objective": {"name": "grpo+tis", "correction_clip": 5.0},
    "prompts_per_step": 4,
}


@pytest.fixture
def sweep(tmp_path):
    """The table of runs of a sweep over two objectives and two seeds."""
    return write_sweep(tmp_path, [{}, {"objective": "gspo"}])


def copy_policy(folder):
    """Return a file of another policy than the stored ones."""
    like = jax.eval_shape(lambda: init_params(jax.random.key(0), MODELS["tiny-llama"]))
    params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    return str(save_tree(folder / "own.npz", params))


def write_sweep(tmp_path, changes):
    """Write the table of runs of a sweep over changes and two seeds; return its folder and the configs."""
    configs = [run_config({**RUN, "seed": seed}, change) for change in changes for seed in (0, 1)]
    write_finished_sweep(tmp_path, configs, ["TIS", "TIS", "GSPO", "GSPO"])
    return tmp_path, configs


@pytest.mark.parametrize(("arm", "number"), [(None, 0), ("TIS", 0), ("GSPO", 2)])
def test_read_sweep_restores_the_config_of_a_run(sweep, arm, number):
    folder, configs = sweep
    assert len(pd.read_parquet(folder / "runs.parquet")) == 4
    assert run_config({}, _read_sweep(folder, arm)) == configs[number]


def test_explain_asks_for_a_policy_that_is_elsewhere(tmp_path):
    folder, _ = write_sweep(tmp_path, [{"warm_start": copy_policy(tmp_path)}])
    (tmp_path / "own.npz").rename(tmp_path / "moved.npz")
    values = _read_sweep(folder, None)
    with pytest.raises(ValueError, match=r"no shipped policy has the content .sha256:.*--params FILE"):
        _load_policy(values, None)
    config, recipe, params = _load_policy(_without_policy(values), tmp_path / "moved.npz")
    assert config.warm_start is None
    assert params["embedding"].shape[1] == recipe.model.hidden_size


def test_params_do_not_hide_a_wrong_name(tmp_path):
    given = ["add-tiny-lama-0", "--pair", "f32/bf16", "--params", copy_policy(tmp_path)]
    result = runner.invoke(app, ["explain", *given])
    assert result.exit_code == 2
    assert "no file 'add-tiny-lama-0'; did you mean" in " ".join(result.stderr.split())


def test_read_sweep_restores_lists(tmp_path):
    change = {"objective": {"name": "grpo+mis", "correction_clip": [0.5, 2.0]}}
    folder, configs = write_sweep(tmp_path, [change])
    assert run_config({}, _read_sweep(folder, None)) == configs[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SWEEP", "--arm", "TIZ"], r"unknown arm 'TIZ'; did you mean 'TIS'\? allowed: TIS, GSPO"),
        (["add-tiny-llama-0"], r"is not a sweep directory. A warm start also needs --pair"),
        (
            ["add-tiny-lama-0", "--pair", "f32/bf16"],
            r"no file 'add-tiny-lama-0'; did you mean 'add-tiny-llama-0'\? there are: ",
        ),
        (
            ["add-tiny-llama-0", "--pair", "f32/bf17"],
            r"unknown inference engine of the pair 'f32/bf17', 'bf17'; did you mean 'bf16'\?",
        ),
        (
            ["add-tiny-llama-0", "--arm", "x", "--pair", "f32/bf16"],
            r"--arm applies only to a sweep directory, and add-tiny-llama-0 is a warm start. Remove --arm x",
        ),
        (["SWEEP", "--model", "tiny-moe"], r"--model applies only to a warm start, and .* sweep directory"),
        (["SWEEP", "--task", "add"], r"--task applies only to a warm start, and .* sweep directory"),
        (
            ["nope"],
            r"must be a sweep directory or a warm start, got 'nope': .*there are: .*add-tiny-llama-0",
        ),
        (["nope", "--model", "tiny-moe"], r"must be a sweep directory or a warm start, .*there are: "),
        (
            ["add-tiny-moe-0", "--pair", "f32/bf16", "--model", "tiny-llama"],
            r"simlab: model must be tiny-moe, the model of the warm start add-tiny-moe-0, got tiny-l",
        ),
        (["SWEEP", "--params", "nope.npz"], r"Invalid value for '--params'.* 'nope.npz' does not exist"),
        (["add-tiny-llama-0", "--pair", "f32/bf16", "--prompts", "0"], r"Invalid value for '--prompts'"),
        (
            ["add-tiny-llama-0", "--pair", "f32/bf16", "--group-size", "0"],
            r"Invalid value for '--group-size'",
        ),
        (["add-tiny-llama-0", "--pair", "f32/bf16", "--top", "-1"], r"Invalid value for '--top'"),
        (["add-tiny-llama-0", "--pair", "f32/f32"], r"the two engines of the pair are the same"),
    ],
)
def test_explain_rejects_invalid_input(sweep, arguments, message):
    chosen = [str(sweep[0]) if argument == "SWEEP" else argument for argument in arguments]
    result = runner.invoke(app, ["explain", *chosen])
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.stderr.replace("│", " ").split()))
    assert "Traceback" not in result.output
