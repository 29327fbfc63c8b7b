"""Commands that compute keep compiled functions, and help does not import JAX."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from simlab.cli import app
from simlab.core import backend

COMPUTING = ("warm-start", "probe", "calibrate", "diagnose", "explain", "theory")


@pytest.mark.parametrize(
    "arguments",
    [
        ["warm-start", "nothing", "tiny-dense", "--out", "x.npz"],
        ["explain", "nothing/nothing"],
        ["diagnose", "nothing.jsonl"],
    ],
)
def test_command_keeps_compiled_functions(arguments, monkeypatch):
    calls = []
    monkeypatch.setattr(backend, "enable_compile_cache", lambda: calls.append("enabled"))
    assert CliRunner().invoke(app, arguments).exit_code != 0
    assert calls == ["enabled"]


def test_help_of_computing_commands_does_not_import_jax():
    code = (
        "import sys; from typer.testing import CliRunner; from simlab.cli import app\n"
        f"for name in {COMPUTING}:\n"
        "    result = CliRunner().invoke(app, [name, '--help'])\n"
        "    assert result.exit_code == 0 and 'Usage' in result.output, name\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
