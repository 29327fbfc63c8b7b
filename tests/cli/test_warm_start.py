"""`simlab warm-start` on the command line."""

import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from simlab.cli import app
from simlab.training.checkpoints import load_tree


def run(folder, *options):
    command = ["warm-start", "add", "tiny-dense", "--out", str(folder / "a.npz"), *options]
    return CliRunner().invoke(app, command)


def replace_training(monkeypatch, params, losses):
    monkeypatch.setattr("simlab.training.warm_start.warm_start", lambda *_: (params, jnp.asarray(losses)))


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--learning-rate", "inf", "must be above 0 and finite in float32, got inf"),
        ("--learning-rate", "nan", "must be above 0 and finite in float32, got nan"),
        ("--learning-rate", "0", "must be above 0 and finite in float32, got 0.0"),
        ("--learning-rate", "1e39", "must be above 0 and finite in float32, got 1e+39"),
        ("--learning-rate", "1e-50", "must be above 0 and finite in float32, got 1e-50"),
        ("--demo-error-rate", "nan", "must be at least 0 and at most 1, got nan"),
        ("--demo-error-rate", "1.5", "must be at least 0 and at most 1, got 1.5"),
        ("--min-lr-ratio", "nan", "must be at least 0 and at most 1, got nan"),
        ("--min-lr-ratio", "-1", "must be at least 0 and at most 1, got -1"),
        ("--steps", "0", "must be at least 1 and at most 10000000, got 0"),
    ],
)
def test_warm_start_rejects_bad_options(tmp_path, monkeypatch, option, value, allowed):
    replace_training(monkeypatch, {"w": jnp.ones(2)}, [1.0])
    done = run(tmp_path, option, value)
    assert done.exit_code == 2, done.output
    assert f"{option} {allowed}" in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("params", "losses", "problem"),
    [
        ([1.0, 1.0], [1.0, float("nan")], "the loss of step 2 is nan"),
        ([1.0, 1.0], [float("inf"), 1.0], "the loss of step 1 is inf"),
        ([1.0, float("inf")], [1.0, 1.0], "the parameters after step 2 are not finite"),
    ],
)
def test_warm_start_writes_no_nonfinite_policy(tmp_path, monkeypatch, params, losses, problem):
    replace_training(monkeypatch, {"w": jnp.asarray(params)}, losses)
    done = run(tmp_path, "--learning-rate", "0.5")
    assert done.exit_code == 2, done.output
    message = " ".join(done.stderr.split())
    assert problem in message
    assert "--learning-rate" in message
    assert "0.5" in message
    assert not list(tmp_path.iterdir())


def test_warm_start_writes_the_trained_policy(tmp_path, monkeypatch):
    replace_training(monkeypatch, {"w": jnp.ones(2)}, [2.0, 1.0])
    done = run(tmp_path)
    assert done.exit_code == 0, done.output
    assert "loss 2.000 to 1.500 nats per token" in done.stdout
    assert load_tree(tmp_path / "a.npz", {"w": jnp.zeros(2)})["w"].tolist() == [1, 1]
