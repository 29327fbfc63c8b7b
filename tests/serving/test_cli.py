"""`simlab checkpoint` on the command line."""

import json

import jax
import pytest
from typer.testing import CliRunner

from simlab.cli.checkpoint import app
from simlab.models import MODELS, init_params
from simlab.training.checkpoints import save_tree


@pytest.fixture(scope="module")
def parameters(tmp_path_factory):
    config = MODELS["tiny-moe"]
    path = tmp_path_factory.mktemp("policy") / "policy.npz"
    return save_tree(path, init_params(jax.random.key(0), config))


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_checkpoint_saves_and_inspects(parameters, tmp_path):
    done = run("save", parameters, "tiny-moe", "--out", tmp_path / "policy", "--dtype", "bfloat16")
    assert done.exit_code == 0, done.output
    facts = run("inspect", tmp_path / "policy", "--json")
    values = {row["field"]: row["value"] for row in json.loads(facts.output)}
    assert (values["num_experts"], values["stored"]) == (8, "BF16")
    listed = json.loads(run("inspect", tmp_path / "policy", "--tensors", "--json").output)
    assert {
        "name": "model.norm.weight",
        "stored": "BF16",
        "shape": [64],
        "file": "model.safetensors",
    } in listed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tiny-moo", "--out", "x"), "unknown model 'tiny-moo'; did you mean 'tiny-moe'?"),
        (("tiny-dense", "--out", "x"), "differ in"),
        (("tiny-moe", "--out", "x", "--dtype", "bf16"), "unknown dtype 'bf16'"),
    ],
)
def test_checkpoint_save_prints_one_line_errors(parameters, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    done = run("save", parameters, *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_checkpoint_inspect_rejects_other_directories(tmp_path):
    done = run("inspect", tmp_path)
    assert done.exit_code == 2
    assert "config.json does not exist" in done.stderr
