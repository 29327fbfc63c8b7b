import json
import re
import subprocess
import sys

import pandas as pd
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from simlab.cli import app
from simlab.core.manifest import build_manifest, write_manifest
from simlab.core.paths import committed_results
from simlab.sweeps.config import run_config

runner = CliRunner()


def test_a_reader_that_ends_early_is_no_error():
    with subprocess.Popen(
        [sys.executable, "-m", "simlab", "claims", "--check"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def _commands(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, (*path, name))


@pytest.mark.parametrize("path", [path for path, _ in _commands(get_command(app))], ids=" ".join)
def test_every_help_shows_an_example(path):
    result = runner.invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert re.search(r"Example: .?simlab", result.output)


@pytest.mark.parametrize(
    "catalog",
    [
        "formats",
        "engines",
        "pairs",
        "noise-kinds",
        "objectives",
        "metrics",
        "tasks",
        "models",
        "schedules",
        "experiments",
        "figures",
        "sites",
        "notebooks",
    ],
)
def test_lists_print_tables_and_json(catalog):
    rows = json.loads(runner.invoke(app, ["list", catalog, "--json"]).stdout)
    assert rows
    assert all(list(row) == list(rows[0]) for row in rows)
    shown = runner.invoke(app, ["list", catalog])
    assert shown.exit_code == 0
    assert rows[0]["name"].split("-")[0] in shown.stdout


def test_listed_sites_take_what_they_say():
    rows = json.loads(runner.invoke(app, ["list", "sites", "--json"]).stdout)
    examples = {
        "a format's name": ["bf16"],
        "a table": [{"output": "bf16"}],
        "a position": [2],
        "a number": [2],
    }
    for row in rows:
        found = [values for start, values in examples.items() if row["takes"].startswith(start)]
        for value in found[0] if found else row["takes"].split(", "):
            if not row["takes"].startswith("the order"):
                run_config({"task": "add", "model": "tiny-moe", "engines": "f32/f32"}, {row["name"]: value})


def test_run_writes_a_result_that_pandas_opens(tmp_path):
    result = runner.invoke(app, ["run", "formats", "--smoke", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert set(manifest["tables"]) == {path.stem for path in tmp_path.glob("*.parquet")}
    for name, rows in manifest["tables"].items():
        assert len(pd.read_parquet(tmp_path / f"{name}.parquet")) == rows


def test_run_takes_several_experiments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["run", "formats", "softmax", "--explain"])
    assert result.exit_code == 0, result.output
    assert "formats:" in result.output
    assert "softmax:" in result.output


def test_figures_draw_from_a_named_run(tmp_path):
    runner.invoke(app, ["run", "formats", "--smoke", "--out", str(tmp_path / "run")])
    result = runner.invoke(
        app, ["figures", "format_error", "--results", str(tmp_path / "run"), "--out", str(tmp_path / "drawn")]
    )
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == {"format_error.png", "format_error.svg"}


def test_figures_without_any_result_fail(tmp_path):
    result = runner.invoke(app, ["figures", "--results", "/nowhere", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_figures_accept_the_papers_name(tmp_path):
    shipped = str(committed_results(""))
    result = runner.invoke(app, ["figures", "ACRL tab 2", "--results", shipped, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {"acrl_tab2.png", "acrl_tab2.svg"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "sofmax"], r"unknown experiment 'sofmax'; did you mean 'softmax'\? allowed: "),
        (["figures", "hacking Fig. 11"], r"hacking Fig. 11 is not drawn: a sketch; `hacking_fig5`"),
        (["figures", "nothing"], r"unknown figure 'nothing'; .*allowed: .*format_error"),
        (
            ["figures", "format_error", "--results", "/nowhere"],
            r"no finished run in /nowhere and /nowhere/formats; make one with: simlab run formats",
        ),
        (
            ["run", "formats", "--smoke", "--out", "/proc/version"],
            r"--out must be a directory, got the file /proc/version",
        ),
        (
            ["run", "softmax", "--smoke", "--resume-from", "/nowhere"],
            r"softmax cannot resume. Remove --resume-from",
        ),
        (
            ["figures", "format_error", "--out", "/proc/version"],
            r"--out must be a directory, got the file /proc",
        ),
        (
            ["warm-start", "add", "tiny-dense", "--out", "/proc"],
            r"--out must be a file, got the directory /proc",
        ),
        (
            ["warm-start", "add", "tiny-dense", "--out", "/proc/version/a.npz"],
            r"--out must be a directory, got",
        ),
        (
            ["warm-start", "add", "tiny-dense", "--out", "a.npz", "--seed", "2147483648"],
            r"less than or equal to 2147483647",
        ),
        (
            ["export", "slurm", "examples/first_sweep.toml", "--hours", "inf"],
            r"less than or equal to 8760",
        ),
        (["report", "--out", "/proc"], r"--out must be a file, got the directory /proc"),
        (
            ["diagnose", "none.jsonl", "--out", "/proc/version"],
            r"--out must be a directory, got the file /proc",
        ),
        (
            ["diagnose", "a.jsonl", "b.jsonl", "--out", "/tmp/o"],
            r"--out takes one log. Remove the second one",
        ),
        (["diagnose", "a.jsonl", "--rename", "=logp"], r"--rename must be FOUND=COLUMN .*, got =logp"),
        (["run", "formats", "softmax", "--smoke", "--out", "x"], r"--out needs a single experiment, got fo"),
        (["run", "softmax", "--no-futility"], r"--no-futility needs .* interim analyses, got softmax"),
        (["run", "lr_dynamics", "--smoke", "--resume-from", "/nowhere"], r"folder /nowhere does not exist"),
        (["watch", "/nowhere"], r"folder /nowhere does not exist"),
        (["watch", "/proc/version"], r"FOLDER must be a directory, got the file /proc/version"),
        (["watch", "/nowhere", "--every", "-1"], r"--every must be at least 0.1 and at most 86400, got -1"),
        (["watch", "/nowhere", "--every", "nan"], r"--every must be at least 0.1 .*, got nan"),
        (["calibrate", "/nowhere", "/nowhere"], r"folder /nowhere does not exist"),
        (["budget", "--rho-std", "inf"], r"rho_std must be between 0 and 1e\+100, got inf"),
        (["budget", "--rho-std", "1e200"], r"rho_std must be between 0 and 1e\+100, got 1e\+200"),
        (["budget", "--rho-std", "0.02", "--rounding", "nope"], r"--rounding needs --format"),
        (["budget", "--rho-std", "0.02", "--logit-std", "2"], r"--logit-std needs --format"),
        (
            ["sweep", "examples/nothing.toml"],
            r"no file examples/nothing.toml, neither here nor shipped with simlab",
        ),
    ],
)
def test_bad_input_is_one_clear_error_before_any_compute(arguments, message):
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert re.search(message, result.stderr.replace("\n", " "))
    assert "Traceback" not in result.output


def test_run_rejects_a_result_of_another_command(tmp_path):
    write_manifest(tmp_path, build_manifest("diagnosis", {"path": "log"}, [], {"total": 0.0}, {}))
    result = runner.invoke(app, ["run", "lr_dynamics", "--smoke", "--resume-from", str(tmp_path)])
    assert result.exit_code == 2
    assert "must hold a run of an experiment" in " ".join(result.stderr.split())


def test_figures_without_names_say_how_many(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("simlab.cli.figures._draw", lambda name, *_, **__: drawn.append(name) or True)
    result = runner.invoke(app, ["figures", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert f"drawing {len(drawn)} figures, about" in result.stderr
    assert "pass names to draw fewer" in " ".join(result.stderr.split())


def test_a_figure_refuses_the_results_of_another_experiment(tmp_path):
    runner.invoke(app, ["run", "formats", "--smoke", "--out", str(tmp_path)])
    result = runner.invoke(app, ["figures", "softmax_levels", "--results", str(tmp_path)])
    assert result.exit_code == 2
    assert "holds a run of 'formats', not of 'softmax'" in result.stderr.replace("\n", " ")


def test_figures_names_the_smoke_run_that_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simlab.core.paths.checkout_root", lambda: tmp_path)
    folder = tmp_path / "runs" / "formats-smoke"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    result = runner.invoke(app, ["figures", "format_error"])
    assert result.exit_code == 2
    assert "draw the smoke run with: --results runs/formats-smoke" in " ".join(result.stderr.split())


def test_a_shipped_example_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["sweep", "examples/first_sweep.toml", "--plan"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("first_sweep: 8 runs; 2 compiled functions, 2 run batches")
    (tmp_path / "examples").mkdir()
    own = tmp_path / "examples" / "first_sweep.toml"
    own.write_text('[base]\ntask = "sort"\nmodel = "tiny-dense"\nengines = "f32/bf16"\nsteps = 2\n')
    result = runner.invoke(app, ["sweep", "examples/first_sweep.toml", "--plan"])
    assert "1 run; 1 compiled function, 1 run batch of" in result.stdout


def test_run_without_its_resumed_result_leaves_no_folder(tmp_path):
    out = tmp_path / "out"
    result = runner.invoke(app, ["run", "lr_dynamics", "--resume-from", "/nowhere", "--out", str(out)])
    assert result.exit_code == 2
    assert not out.exists()


def test_json_has_no_infinity():
    result = runner.invoke(app, ["budget", "--rho-std", "0", "--json"])
    (row,) = json.loads(result.stdout, parse_constant=pytest.fail)
    assert row["length_at_half_ess"] is None
    assert row["ess"] == 1.0


def test_budget_explains_its_numbers():
    shown = " ".join(runner.invoke(app, ["budget", "--format", "e4m3fn"]).stdout.split())
    assert "Gaussian logits (std 1.5) rounded to e4m3fn" in shown
    assert "product of rho exceeds 2" in shown


def test_doctor_prints_json():
    facts = json.loads(runner.invoke(app, ["doctor", "--json"]).stdout)
    assert {"device", "versions", "xla_flags", "pitfalls"} == set(facts)
