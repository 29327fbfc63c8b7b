"""`simlab sweep` and `simlab watch`: errors and plans before any compute, and a whole small sweep."""

import json
import re

import pytest
from typer.testing import CliRunner

from simlab.cli import app
from simlab.core.paths import checkout_root
from simlab.sweeps import sweep
from simlab.sweeps.aliases import ALIASES
from simlab.sweeps.file import read_file
from simlab.sweeps.plan import expand

runner = CliRunner()
SWEEP = """
name = "small"
runs_per_batch = 2
[base]
engines = "f32/f32"
objective = "grpo"
task = "sort"
model = "tiny-dense"
steps = 2
[over]
seed = [0, 1]
"""


def call(tmp_path, text, *options):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return runner.invoke(app, ["sweep", str(path), "--out", str(tmp_path / "out"), *options])


def test_ranges_of_unquoted_fields_are_read(tmp_path):
    fields = "optimizer.learning_rate = {log_uniform = [1e-5, 1e-3]}\nobjective.clip_low = [0.1, 0.2]"
    path = tmp_path / "sweep.toml"
    path.write_text(f"{SWEEP}\n[sampled]\ncount = 3\nseed = 0\n[sampled.fields]\n{fields}\n")
    points = read_file(path).grid.points
    assert len(points) == 6
    for point in points:
        assert 1e-5 <= point.changes["optimizer.learning_rate"] <= 1e-3
        assert point.changes["objective.clip_low"] in (0.1, 0.2)


def test_unquoted_fields_of_a_format_are_read(tmp_path):
    field = "engines.infer.projection.weights.format.mantissa_bits"
    path = tmp_path / "sweep.toml"
    path.write_text(f"{SWEEP}\n[sampled]\ncount = 3\nseed = 0\n[sampled.fields]\n{field} = [2, 3]\n")
    assert {point.changes[field] for point in read_file(path).grid.points} <= {2, 3}


def test_plan_option_computes_nothing(tmp_path):
    result = call(tmp_path, SWEEP, "--plan")
    assert result.exit_code == 0, result.output
    assert (
        result.stdout.strip()
        == "small: 2 runs; 1 compiled function, 1 run batch of 2, 4 run-steps to compute"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SWEEP.replace('"grpo"', '"grop"'),
            r"objective: unknown objective 'grop'; did you mean 'grpo'\? allowed",
        ),
        (SWEEP.replace("seed = [0, 1]", "seed = [0, 1, 0]"), r"seed must have each value once, got 0 twice"),
        (SWEEP.replace("seed = [0, 1]", "seed = 1"), r"seed must be a list of at least one value, got 1"),
        (
            SWEEP.replace("runs_per_batch = 2", 'runs_per_batch = "four"'),
            "must be an integer >= 1, got 'four'",
        ),
        (SWEEP.replace("runs_per_batch = 2", "arms = [1]"), r"arms must be a table, got \[1\]"),
        (
            SWEEP.replace("runs_per_batch = 2", "arms = {TIS = 1}"),
            "arms.TIS must be a table of changes, got 1",
        ),
        (SWEEP.replace('name = "small"', "name = 3"), "name must be a string, got 3"),
        (SWEEP.replace("[over]", "[ovr]"), r"unknown part of sweep.toml 'ovr'; did you mean 'over'\?"),
        (SWEEP.replace("[base]", "[base"), r"sweep.toml: "),
        ('task = "add"\n' + SWEEP, r"'task' is a field of the run. Put it under \[base\] or \[over\]"),
        (
            "clip = 1\n" + SWEEP,
            r"must be under \[base\] or \[over\], got 'clip'. Did you mean 'clip_low' and",
        ),
        (
            "mantissa_bits = 3\n" + SWEEP,
            r"under \[base\] or \[over\], got 'mantissa_bits'. Did you mean 'engines.infer.*mantissa_bits'",
        ),
        ("[over]\nseed = [0]", r"the table \[base\] is missing"),
        (SWEEP.replace("runs_per_batch = 2", "sampled = {count = 3}"), r"\[sampled\] needs seed, fields"),
        (
            SWEEP.replace("runs_per_batch = 2", "sampled = {cuont = 3}"),
            r"unknown key of \[sampled\] 'cuont'; did you mean 'count'",
        ),
        (SWEEP.replace("runs_per_batch = 2", "arms = {}"), "arms must name at least one arm, got none"),
        (SWEEP.replace("runs_per_batch = 2", "runs_per_batch = true"), "must be an integer >= 1, got True"),
    ],
)
def test_bad_file_is_one_clear_error(tmp_path, text, message):
    result = call(tmp_path, text)
    assert result.exit_code == 2
    assert re.search(message, result.stderr.replace("\n", " "))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("base", "options", "message"),
    [
        ("add", {}, r"a run must be a table of fields .*, got 'add'\.$"),
        ({"task": "add"}, {"workers": "two"}, "workers must be an integer >= 0, got 'two'"),
        ({"task": "add"}, {"workers": -1}, "workers must be an integer >= 0, got -1"),
        ({"task": "add"}, {"runs_per_batch": "x"}, "runs_per_batch must be an integer >= 1, got 'x'"),
        ({"task": "add"}, {"checkpoint_seconds": "x"}, "checkpoint_seconds must be a number >= 0, got 'x'"),
    ],
)
def test_sweep_rejects_invalid_arguments(tmp_path, capsys, base, options, message):
    with pytest.raises(ValueError, match=message):
        sweep(base, {"seed": [0]}, tmp_path / "out", **options)
    assert not capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", "-3"), "Invalid value for '--workers'"),
        (("--runs-per-batch", "0"), "Invalid value for '--runs-per-batch'"),
        (("--executor", "slurm"), "unknown executor 'slurm'; .*allowed: local, ray"),
        (("--address", "host:1"), "--address must be given with --executor ray only"),
    ],
)
def test_bad_option_is_one_clear_error(tmp_path, options, message):
    result = call(tmp_path, SWEEP, "--plan", *options)
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.stderr.split()))


def test_help_lists_the_short_names():
    text = runner.invoke(app, ["sweep", "--help"], env={"COLUMNS": "200"}).stdout
    assert all(name in text for name in ALIASES)


def test_watching_nothing_is_an_error(tmp_path):
    result = runner.invoke(app, ["watch", str(tmp_path), "--once"])
    assert result.exit_code == 2
    assert "no finished run" in result.stderr


@pytest.mark.parametrize(
    "path", sorted((checkout_root() / "examples").glob("*.toml")), ids=lambda path: path.stem
)
def test_examples_can_be_planned(path):
    described = read_file(path)
    assert len(expand(described.base, described.grid, described.runs_per_batch or 4)) == len(described.grid)


@pytest.mark.slow
def test_sweep_command_runs_a_file(tmp_path):
    result = call(tmp_path, SWEEP, "--workers", "0")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["name"] == "small"
    assert runner.invoke(app, ["watch", str(tmp_path / "out")]).exit_code == 0
