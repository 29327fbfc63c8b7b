import re

import pandas as pd
import pytest
from typer.testing import CliRunner

from simlab.cli import app
from simlab.cli.explain import _read_sweep
from simlab.core.manifest import build_manifest, write_manifest
from simlab.core.results import write_table
from simlab.sweeps.config import columns, run_config
from simlab.sweeps.tables import runs_table

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
    configs = [
        run_config({**RUN, "seed": seed}, change) for change in ({}, {"objective": "gspo"}) for seed in (0, 1)
    ]
    own = {
        "run": "k",
        "status": "finished",
        "diverged_at": -1,
        "dead_since": -1,
        "dead_because": "",
        "steps_completed": 1,
    }
    records = [own | {"columns": columns(config)} for config in configs]
    write_table(tmp_path, "runs", runs_table(records, ["TIS", "TIS", "GSPO", "GSPO"]))
    write_manifest(tmp_path, build_manifest("sweep", {}, [], {"total": 0.0}, {"runs": 4}))
    return tmp_path, configs


@pytest.mark.parametrize(("arm", "number"), [(None, 0), ("TIS", 0), ("GSPO", 2)])
def test_read_sweep_restores_the_config_of_a_run(sweep, arm, number):
    folder, configs = sweep
    assert len(pd.read_parquet(folder / "runs.parquet")) == 4
    assert run_config({}, _read_sweep(folder, arm)) == configs[number]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SWEEP", "--arm", "TIZ"], r"unknown arm 'TIZ'; did you mean 'TIS'\? allowed: TIS, GSPO"),
        (["add-tiny-llama-0"], r"is not a sweep directory. A warm start also needs --pair"),
        (
            ["add-tiny-lama-0", "--pair", "f32/bf16"],
            r"no file 'add-tiny-lama-0'; did you mean 'add-tiny-llama-0'\? there are: ",
        ),
        (["add-tiny-llama-0", "--pair", "f32/bf17"], r"bf17"),
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
    assert re.search(message, result.stderr.replace("\n", " "))
    assert "Traceback" not in result.output
